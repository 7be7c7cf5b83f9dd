"""Other packages' protocols, each in a module that needs the extra of its name: `transaction`, `fsspec`."""
