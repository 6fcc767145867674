import hashlib
import subprocess
import sys
import zipfile

import pytest

from stormkeeper.topology.package.archive import unpack
from stormkeeper.worker import job, remote_spark
from support.packages import of_folder, packed, tree

FILES = {
    "topology.py": "import parts.one\n",
    "beside.py": "NAME = 'beside'\n",
    "parts/one.py": "NAME = 'one'\n",
    "parts/data.txt": "some data\n",
}


@pytest.fixture
def package(tmp_path):
    file, _ = packed(of_folder(tree(tmp_path / "mine", FILES)))
    unpack(file, tmp_path / "package")
    return job.read_package(tmp_path / "package")


def test_another_python_imports_from_it_also_without_init_files(package, tmp_path):
    archive = remote_spark.write_code(package, tmp_path)
    code = (
        "import pkgutil, sys; sys.path.insert(1, sys.argv[1]); import beside, parts.one;"
        "print(beside.NAME, parts.one.NAME,"
        " beside.__loader__.get_data(sys.argv[1] + '/parts/data.txt').decode())"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(archive)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["beside", "one", "some", "data"]


def test_the_same_package_makes_the_same_bytes(package, tmp_path):
    (tmp_path / "other").mkdir()
    first = remote_spark.write_code(package, tmp_path)
    # As Python leaves it there when the driver has imported a module.
    tree(package.code, {"__pycache__/beside.pyc": "cached"})
    second = remote_spark.write_code(package, tmp_path / "other")
    digests = {hashlib.sha256(file.read_bytes()).hexdigest() for file in (first, second)}
    assert len(digests) == 1
    with zipfile.ZipFile(second) as archive:
        assert archive.namelist() == ["parts/", *sorted(FILES)]
