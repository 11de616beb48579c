"""Where models come from: packs that a package registry carries, directories, files."""
