// Package version says which remuda this is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is the release that this tree becomes; the linker may overwrite it.
var Version = "0.1.0-dev"

// Commit and Date are the commit that was built and its time. The linker sets them in a release; otherwise
// they are what Go recorded about the checkout, empty if that is nothing.
var Commit, Date string

// String is the version alone.
func String() string { return Version }

// Details are everything that is known about the build. Commit and Date may be empty.
type Details struct {
	Version, Commit, Date, Go, Platform string
}

// Read returns the details of this program.
func Read() Details {
	d := Details{Version: Version, Commit: Commit, Date: Date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if d.Commit == "" {
		d.Commit, d.Date = recorded()
	}
	return d
}

// Long is the version with commit, date, toolchain and platform, for people.
func Long() string {
	d := Read()
	details := []string{d.Go, d.Platform}
	if d.Commit != "" {
		details = append([]string{"commit " + d.Commit, d.Date}, details...)
	}
	return fmt.Sprintf("remuda %s (%s)", d.Version, strings.Join(details, ", "))
}

// recorded returns the commit and its date as `go build` records them in a checkout.
func recorded() (commit, date string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.time":
			date = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		commit += "+dirty"
	}
	return commit, date
}
