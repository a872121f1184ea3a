package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"remuda/internal/bytesize"
)

// Result is the outcome of a step.
type Result string

// The results. Only Fail makes the run fail.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	// Skip is a step that has no meaning on this backend, or that a flag leaves out.
	Skip Result = "skip"
)

// Figures are numbers by name; the name ends with the unit.
type Figures map[string]float64

// Row is one step.
type Row struct {
	Check  string `json:"check"` // number and name
	What   string `json:"what"`  // what must hold
	Result Result `json:"result"`
	// Seen is what was measured, or why the step failed or was skipped.
	Seen    string  `json:"seen"`
	Figures Figures `json:"figures,omitempty"`
	Seconds float64 `json:"seconds"` // how long the step took
}

// Report is the outcome of a run.
type Report struct {
	// Device, UUID and MemoryBytes are as the CUDA driver reports them, Driver and CUDA
	// as NVML does; empty with the host backend.
	Device      string    `json:"device"`
	UUID        string    `json:"uuid"`
	MemoryBytes uint64    `json:"memory_bytes"`
	Driver      string    `json:"driver"`
	CUDA        string    `json:"cuda"`
	Date        time.Time `json:"date"`
	Backend     string    `json:"backend"`
	CPUs        int       `json:"cpus"`
	Version     string    `json:"version"`
	Weights     string    `json:"weights"`
	Seconds     float64   `json:"seconds"`
	Rows        []Row     `json:"rows"`
}

// count is the number of steps with the result.
func (r *Report) count(result Result) (n int) {
	for _, row := range r.Rows {
		if row.Result == result {
			n++
		}
	}
	return n
}

// OK reports whether something passed and nothing failed.
func (r *Report) OK() bool { return r.count(Pass) > 0 && r.count(Fail) == 0 }

// Markdown is the report as a page with one table.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# gpu-check

- device: %s %s, %s
- driver %q, CUDA %q
- date: %s
- remuda %s, backend %s, %d CPUs
- weights of the pair: %s
- result: %d passed, %d failed, %d skipped, in %s

| check | what | result | seen |
|---|---|---|---|
`, r.Device, r.UUID, bytesize.Text(int64(r.MemoryBytes)), r.Driver, r.CUDA, r.Date.UTC().Format(time.RFC3339), r.Version, r.Backend, r.CPUs, r.Weights,
		r.count(Pass), r.count(Fail), r.count(Skip), short(time.Duration(r.Seconds*float64(time.Second))))
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(row.Check), cell(row.What), row.Result, cell(row.Seen))
	}
	return b.String()
}

// cell is text that leaves the table whole.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}

// Write makes results.md and results.json in a directory.
func (r *Report) Write(dir string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "results.json"), append(raw, '\n'), 0o644),
			os.WriteFile(filepath.Join(dir, "results.md"), []byte(r.Markdown()), 0o644))
	}
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
