package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const output = `=== RUN   TestA
    a_test.go:7: figure import_seconds 0.25
    a_test.go:9: figure import_seconds 0.125
    a_test.go:9: figure return_seconds 1e-05
--- PASS: TestA (0.30s)
=== RUN   TestB
=== PAUSE TestB
=== RUN   TestC
    b_test.go:3: left out on cuda: it needs two
--- SKIP: TestC (0.00s)
=== CONT  TestB
    b_test.go:8: something else
=== RUN   TestB/one
    --- FAIL: TestB/one (0.00s)
--- FAIL: TestB (0.01s)
FAIL
`

func TestParseSuite(t *testing.T) {
	require.Equal(t, []testResult{
		{"TestA", Pass, Figures{"import_seconds": 0.25, "return_seconds": 1e-05}, ""},
		{"TestC", Skip, Figures{}, "left out on cuda: it needs two"},
		{"TestB", Fail, Figures{}, "something else"},
	}, parseSuite(output))
	require.Empty(t, parseSuite("panic: no\n"))
}

func TestSuiteSummary(t *testing.T) {
	tests := parseSuite(output)
	s, err := suiteSummary(tests)
	require.EqualError(t, err, "failed, see logs/: TestB")
	require.Equal(t, "1 of 3 tests passed; left out on cuda: it needs two: TestC", s.text)
	require.Equal(t, Figures{"tests": 3, "passed": 1}, s.figures)
	_, err = suiteSummary(tests[:2])
	require.NoError(t, err)
	_, err = suiteSummary(nil)
	require.EqualError(t, err, "no test ran")
}
