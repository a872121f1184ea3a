// Package long says whether tests run in their long form.
//
// A test that repeats one thing with many seeds, processes or bytes proves its promise with
// a few of them, and finds rare failures with many. Plain `go test` runs the short form, so
// that every run of the suite stays quick; `make verify` sets REMUDA_LONG=1 and runs the
// long form. The short form must be able to fail: it is a smaller sample of the same check,
// never a skip of the only proof.
package long

import "os"

// Enabled reports whether REMUDA_LONG is 1.
func Enabled() bool { return os.Getenv("REMUDA_LONG") == "1" }

// Pick returns full in the long form and short otherwise.
func Pick(short, full int) int {
	if Enabled() {
		return full
	}
	return short
}
