package gpucheck

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Result is what came of a step.
type Result string

// The results. Only Fail makes the whole fail.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	// Skip is a step that has no meaning on this backend.
	Skip Result = "skip"
)

// Figures are numbers by name; the name ends with the unit.
type Figures map[string]float64

// Row is one step.
type Row struct {
	// Check is the number and name of the check that the step belongs to.
	Check string `json:"check"`
	// What must hold.
	What   string `json:"what"`
	Result Result `json:"result"`
	// Seen is what was measured, or why the step failed or was skipped.
	Seen    string  `json:"seen"`
	Figures Figures `json:"figures,omitempty"`
	// Seconds is how long the step took.
	Seconds float64 `json:"seconds"`
}

// Report is the outcome of a run.
type Report struct {
	// Device, UUID and MemoryBytes are as the CUDA driver tells them, Driver and
	// CUDA as NVML does; empty with the host backend.
	Device      string    `json:"device"`
	UUID        string    `json:"uuid"`
	MemoryBytes uint64    `json:"memory_bytes"`
	Driver      string    `json:"driver"`
	CUDA        string    `json:"cuda"`
	Date        time.Time `json:"date"`
	Backend     string    `json:"backend"`
	// Meter says who tells how much memory is used.
	Meter   string  `json:"meter"`
	Host    string  `json:"host"`
	Version string  `json:"version"`
	Weights string  `json:"weights"`
	Seconds float64 `json:"seconds"`
	Rows    []Row   `json:"rows"`
}

// Count is how many steps came out so.
func (r *Report) Count(result Result) int {
	n := 0
	for _, row := range r.Rows {
		if row.Result == result {
			n++
		}
	}
	return n
}

// OK tells that something passed and nothing failed.
func (r *Report) OK() bool { return r.Count(Pass) > 0 && r.Count(Fail) == 0 }

// Markdown is the report as a page with one table.
func (r *Report) Markdown() string {
	var b strings.Builder
	line := func(name, value string) {
		if value == "" {
			value = "not known"
		}
		fmt.Fprintf(&b, "- %s: %s\n", name, value)
	}
	b.WriteString("# gpu-check\n\n")
	device := r.Device
	if r.UUID != "" {
		device = fmt.Sprintf("%s, %s, %s", r.Device, r.UUID, amount(r.MemoryBytes))
	}
	line("device", device)
	line("driver", r.Driver)
	line("CUDA", r.CUDA)
	line("date", r.Date.UTC().Format(time.RFC3339))
	line("backend", r.Backend+", memory in use as told by "+r.Meter)
	line("host", r.Host)
	line("remuda", r.Version)
	line("weights of the pair", r.Weights)
	line("result", fmt.Sprintf("%d passed, %d failed, %d skipped, in %s", r.Count(Pass), r.Count(Fail), r.Count(Skip),
		short(time.Duration(r.Seconds*float64(time.Second)))))
	b.WriteString("\n| check | what | result | seen |\n|---|---|---|---|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(row.Check), cell(row.What), row.Result, cell(row.Seen))
	}
	return b.String()
}

// cell is text that leaves the table whole.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}

// Files that Write makes.
const (
	markdownFile = "results.md"
	jsonFile     = "results.json"
)

// Write puts results.md and results.json into a directory.
func (r *Report) Write(dir string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	for name, content := range map[string][]byte{jsonFile: append(raw, '\n'), markdownFile: []byte(r.Markdown())} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	return nil
}
