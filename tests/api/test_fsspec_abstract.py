"""fsspec's own tests of a file system."""

from __future__ import annotations

from pathlib import Path

import fsspec.tests.abstract as abstract
import pytest
from fsspec.implementations.local import LocalFileSystem

from txfiles.integrations.fsspec import TxFilesFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, root: Path) -> TxFilesFileSystem:
        return TxFilesFileSystem(root, durability="process", skip_instance_cache=True)

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        """For each test, as older versions of these tests break the rules of pytest."""
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, root: Path) -> str:
        return str(root)


class TestCopy(Fixtures, abstract.AbstractCopyTests): ...


class TestGet(Fixtures, abstract.AbstractGetTests): ...


class TestPut(Fixtures, abstract.AbstractPutTests): ...


class TestPipe(Fixtures, abstract.AbstractPipeTests): ...


class TestOpen(Fixtures, abstract.AbstractOpenTests): ...
