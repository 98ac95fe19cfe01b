"""The former name of `penstock.formatting`."""

from penstock.formatting import seconds as seconds
