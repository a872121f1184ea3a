package planner_test

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // worlds are small, and there is much garbage
	os.Exit(m.Run())
}
