package planner_test

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		debug.SetGCPercent(400) // worlds are small, and there is much garbage
	}
	os.Exit(m.Run())
}
