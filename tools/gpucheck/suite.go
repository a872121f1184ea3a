package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suiteTime bounds the conformance suite, and noTest selects no test of it.
const (
	suiteTime = 5 * time.Minute
	noTest    = "^$"
)

// checkMemory runs the conformance suite of the GPU memory service. A test that
// measured something has a row of its own as well.
func (r *run) checkMemory(ctx context.Context) {
	const name, what = "2 memory service", "the conformance suite passes"
	if r.cfg.suite == noTest {
		r.skip(name, what, "-suite selects no test")
		return
	}
	var tests []testResult
	_ = r.step(ctx, name, what, suiteTime, func(ctx context.Context) (seen, error) {
		env := []string{"REMUDA_BIN=" + r.cfg.bin, "REMUDA_GMS_BACKEND=" + r.cfg.backend}
		if r.cfg.backend == backendCUDA {
			env = append(env, "REMUDA_GMS_GPU="+r.gpu, "REMUDA_GMS_CUDA_LIBRARY="+r.cfg.cudaLibrary)
		}
		p, err := r.start("2-gms-conformance", env, "gms-conformance", "-test.v", "-test.run", r.cfg.suite, "-test.timeout", suiteTime.String())
		if err != nil {
			return seen{}, err
		}
		defer r.killAll()
		ended := p.Wait(ctx)
		out, err := p.Output()
		if err != nil {
			return seen{}, err
		}
		tests = parseSuite(out)
		s, err := suiteSummary(tests)
		if ended != nil && err == nil { // it broke off
			err = errors.Join(ended, p.Running())
		}
		return s, err
	})
	for _, t := range tests {
		if len(t.figures) == 0 {
			continue
		}
		var text []string
		for _, name := range slices.Sorted(maps.Keys(t.figures)) {
			text = append(text, strings.TrimSuffix(name, "_seconds")+" "+short(time.Duration(t.figures[name]*float64(time.Second))))
		}
		r.add(Row{Check: name, What: t.name, Result: t.result, Seen: strings.Join(text, ", "), Figures: t.figures})
	}
}

// testResult is the outcome of a test of the suite.
type testResult struct {
	name    string
	result  Result
	figures Figures
	last    string // what it logged last: the reason of a test that was skipped
}

// parseSuite reads the output of a test binary with -test.v. What is logged belongs to
// the next test that ends: tests with figures run alone, and the reason of a skipped
// test is the line before its end.
func parseSuite(output string) (all []testResult) {
	t := testResult{figures: Figures{}}
	for line := range strings.Lines(output) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "--- ") && len(f) >= 3: // "--- PASS: TestX (0.00s)"
			t.result, t.name = Result(strings.ToLower(strings.TrimSuffix(f[1], ":"))), f[2]
			all = append(all, t)
			t = testResult{figures: Figures{}}
		case len(f) == 4 && f[1] == "figure": // "    x_test.go:7: figure NAME VALUE"
			if v, err := strconv.ParseFloat(f[3], 64); err == nil {
				t.figures[f[2]] = max(t.figures[f[2]], v)
			}
		case len(f) >= 2 && strings.HasSuffix(f[0], ":"): // "    x_test.go:7: text"
			t.last = strings.Join(f[1:], " ")
		}
	}
	return all
}

// suiteSummary counts the tests and names those that failed or were left out.
func suiteSummary(tests []testResult) (seen, error) {
	names := map[Result][]string{}
	leftOut := map[string][]string{} // by reason
	for _, t := range tests {
		names[t.result] = append(names[t.result], t.name)
		if t.result == Skip {
			leftOut[t.last] = append(leftOut[t.last], t.name)
		}
	}
	s := note("%d of %d tests passed", len(names[Pass]), len(tests))
	for _, reason := range slices.Sorted(maps.Keys(leftOut)) {
		s.text += fmt.Sprintf("; %s: %s", reason, strings.Join(leftOut[reason], ", "))
	}
	s.figures = Figures{"tests": float64(len(tests)), "passed": float64(len(names[Pass]))}
	switch {
	case len(names[Fail]) > 0:
		return s, fmt.Errorf("failed, see logs/: %s", strings.Join(names[Fail], ", "))
	case len(tests) == 0:
		return s, errors.New("no test ran")
	}
	return s, nil
}
