// Package version says which remuda this is.
package version

import (
	"fmt"
	"runtime"
)

// Version is the release that this tree becomes; the linker may overwrite it.
var Version = "0.1.0-dev"

// String is the version alone.
func String() string { return Version }

// Long is the version with the toolchain and platform, for people.
func Long() string {
	return fmt.Sprintf("remuda %s (%s, %s/%s)", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
