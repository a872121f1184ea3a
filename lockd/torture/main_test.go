package torture

import (
	"os"
	"testing"
)

// The test binary plays every part of a run.
func TestMain(m *testing.M) {
	if Play() {
		return
	}
	os.Exit(m.Run())
}
