"""`Folder`: where the files of a checkpoint are, on a disk or behind an fsspec URL.

What is written becomes visible in one step. On a disk a new checkpoint is written
beside its place and renamed there. Where there is no such rename (object stores), and
where an older checkpoint is replaced, the manifest is put in place last, and a folder
without one holds no checkpoint.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, final

from spmd.checkpoint._error import CheckpointError

if TYPE_CHECKING:
    import fsspec

WRITING = ".writing-"
"""In the name of a folder that is being written, before its token."""


class Folder(ABC):
    """Files in one folder.

    Attributes:
        url: As the user wrote it, for messages.
    """

    url: str

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the files and folders inside; none if it does not exist."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is such a file.

        Args:
            name: Its name.
        """

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes of a file.

        Args:
            name: Its name.
        """

    @abstractmethod
    def read(self, name: str, *, at: int = 0, size: int | None = None) -> bytes:
        """Part of a file.

        Args:
            name: Its name.
            at: Where to begin.
            size: How many bytes; None for all. The file may turn out to be shorter.
        """

    @abstractmethod
    def create(self, name: str) -> Any:
        """Open a new file; what was written is on the disk when the context ends.

        Args:
            name: Its name.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Put a small file in place, all of it or none.

        Args:
            name: Its name.
            data: What it holds.
        """

    @abstractmethod
    def remove(self, *names: str) -> None:
        """Delete files or folders; missing ones are no error.

        Args:
            *names: Their names.
        """

    @abstractmethod
    def begin(self, token: str) -> Folder:
        """Where to write what is to become this folder.

        Args:
            token: The same in all processes that write it.
        """

    @abstractmethod
    def publish(self, written: Folder) -> None:
        """Make what was written this folder.

        Args:
            written: From `begin`.
        """

    @abstractmethod
    def inside(self, name: str) -> Folder:
        """A folder in this one.

        Args:
            name: Its name.
        """


@final
class LocalFolder(Folder):
    """A folder on a disk of this machine, or one that is mounted.

    Args:
        root: Its path.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def names(self) -> list[str]:
        """See `Folder`."""
        return sorted(os.listdir(self.root)) if self.root.is_dir() else []

    def exists(self, name: str) -> bool:
        """See `Folder`."""
        return (self.root / name).exists()

    def size(self, name: str) -> int:
        """See `Folder`."""
        return (self.root / name).stat().st_size

    def read(self, name: str, *, at: int = 0, size: int | None = None) -> bytes:
        """See `Folder`."""
        with (self.root / name).open("rb", buffering=0) as stream:
            if size is None:
                return stream.read()[at:]
            stream.seek(at)
            parts = []
            while size > 0 and (part := stream.read(size)):
                parts.append(part)
                size -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """See `Folder`."""
        with (self.root / name).open("wb", buffering=1 << 20) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())

    def replace(self, name: str, data: bytes) -> None:
        """See `Folder`."""
        with self.create(f"{name}.new") as stream:
            stream.write(data)
        os.replace(self.root / f"{name}.new", self.root / name)
        _sync_folder(self.root)

    def remove(self, *names: str) -> None:
        """See `Folder`."""
        for name in names:
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def begin(self, token: str) -> LocalFolder:
        """See `Folder`: beside it, if it does not exist."""
        if self.root.is_dir():
            return self
        beside = self.root.with_name(f"{self.root.name}{WRITING}{token}")
        beside.mkdir(parents=True, exist_ok=True)
        return LocalFolder(beside)

    def publish(self, written: Folder) -> None:
        """See `Folder`."""
        assert isinstance(written, LocalFolder)
        _sync_folder(written.root)
        if written.root != self.root:
            os.rename(written.root, self.root)
            _sync_folder(self.root.parent)

    def inside(self, name: str) -> LocalFolder:
        """See `Folder`."""
        return LocalFolder(self.root / name)


@final
class RemoteFolder(Folder):
    """A folder behind an fsspec URL.

    Args:
        fs: The file system.
        root: Path inside it.
        url: The URL.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str, url: str) -> None:
        self._fs = fs
        self._root = PurePosixPath(root)
        self.url = url

    def _path(self, name: str) -> str:
        return str(self._root / name)

    def names(self) -> list[str]:
        """See `Folder`."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(str(self._root), detail=False)
        except FileNotFoundError:
            return []
        return sorted(PurePosixPath(path).name for path in found)

    def exists(self, name: str) -> bool:
        """See `Folder`."""
        return self._fs.exists(self._path(name))

    def size(self, name: str) -> int:
        """See `Folder`."""
        return int(self._fs.size(self._path(name)) or 0)

    def read(self, name: str, *, at: int = 0, size: int | None = None) -> bytes:
        """See `Folder`."""
        end = None if size is None else at + size
        data: Any = self._fs.cat_file(self._path(name), start=at, end=end)
        return bytes(data)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """See `Folder`."""
        self._fs.makedirs(str(self._root), exist_ok=True)
        stream: Any
        with self._fs.open(self._path(name), "wb") as stream:
            yield stream

    def replace(self, name: str, data: bytes) -> None:
        """See `Folder`: object stores put a file in place as a whole."""
        self._fs.makedirs(str(self._root), exist_ok=True)
        self._fs.pipe_file(self._path(name), data)

    def remove(self, *names: str) -> None:
        """See `Folder`."""
        for name in names:
            if self.exists(name):
                self._fs.rm(self._path(name), recursive=True)

    def begin(self, token: str) -> RemoteFolder:
        """See `Folder`: itself."""
        return self

    def publish(self, written: Folder) -> None:
        """See `Folder`: the manifest has made it visible."""

    def inside(self, name: str) -> RemoteFolder:
        """See `Folder`."""
        return RemoteFolder(self._fs, self._path(name), f"{self.url}/{name}")


def folder_at(path: str | os.PathLike[str]) -> Folder:
    """The folder at a path or URL.

    Args:
        path: A path of this machine, or an fsspec URL.

    Returns:
        The folder; it need not exist.

    Raises:
        ValueError: A URL of a protocol that fsspec does not know, or whose package is
            not installed.
    """
    text = os.fspath(path)
    if "://" not in text or text.startswith("file://"):
        return LocalFolder(Path(text.removeprefix("file://")).expanduser().absolute())
    import fsspec

    try:
        fs, root = fsspec.url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{text}: {error}") from error
    return RemoteFolder(fs, root, text.rstrip("/"))


@contextmanager
def written_beside(target: Folder, token: str) -> Iterator[Folder]:
    """Write files that become a folder together, or leave nothing.

    Args:
        target: The folder.
        token: See `Folder.begin`.

    Yields:
        Where to write them.

    Raises:
        CheckpointError: They could not be written.
    """
    folder = None
    try:
        folder = target.begin(token)
        yield folder
        target.publish(folder)
    except BaseException as error:
        with suppress(OSError):  # the first error says more
            if folder is not None:
                folder.remove(*folder.names())
            if folder is not None and folder.url != target.url:
                folder.remove("")
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise CheckpointError(
                f"{target.url} could not be written ({reason}); nothing is left of it"
            ) from error
        raise


def _sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk, not only the files."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
