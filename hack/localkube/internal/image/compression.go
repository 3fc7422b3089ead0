package image

import (
	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Images never leave the machine, so compressing them would only cost time.
var uncompressed = tarball.WithCompression(compression.None)
