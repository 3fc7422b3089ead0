// Package version says which Kumki this is.
package version

// Version of this binary, a semantic version. The linker sets it: -ldflags "-X …/internal/version.Version=1.2.3".
var Version = "0.1.0-dev"
