package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func report() *Report {
	return &Report{
		Device: "NVIDIA H100 80GB HBM3", UUID: "GPU-1", MemoryBytes: 80 << 30, Driver: "570.86.15", CUDA: "12.8",
		Date: time.Date(2026, 11, 21, 20, 0, 0, 0, time.FixedZone("CET", 3600)), Backend: "cuda", CPUs: 16,
		Version: "0.1.0", Weights: "16 GiB", Seconds: 301.26,
		Rows: []Row{
			{Check: "1 a", What: "holds", Result: Pass, Seen: "3 | 4\nand more", Figures: Figures{"x_seconds": 1.5}, Seconds: 2},
			{Check: "2 b", What: "has no meaning", Result: Skip, Seen: "because"},
		},
	}
}

func TestMarkdown(t *testing.T) {
	require.Equal(t, `# gpu-check

- device: NVIDIA H100 80GB HBM3 GPU-1, 80 GiB
- driver "570.86.15", CUDA "12.8"
- date: 2026-11-21T19:00:00Z
- remuda 0.1.0, backend cuda, 16 CPUs
- weights of the pair: 16 GiB
- result: 1 passed, 0 failed, 1 skipped, in 5m1.3s

| check | what | result | seen |
|---|---|---|---|
| 1 a | holds | pass | 3 \| 4 and more |
| 2 b | has no meaning | skip | because |
`, report().Markdown())
}

func TestReportIsOK(t *testing.T) {
	r := report()
	require.True(t, r.OK())
	r.Rows = append(r.Rows, Row{Result: Fail})
	require.False(t, r.OK())
	require.False(t, (&Report{Rows: []Row{{Result: Skip}}}).OK(), "nothing was checked")
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	r := report()
	require.NoError(t, r.Write(dir))
	page, err := os.ReadFile(filepath.Join(dir, "results.md"))
	require.NoError(t, err)
	require.Equal(t, r.Markdown(), string(page))
	raw, err := os.ReadFile(filepath.Join(dir, "results.json"))
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, r.Rows, back.Rows)
	require.True(t, r.Date.Equal(back.Date))
	require.ErrorContains(t, r.Write(filepath.Join(dir, "nowhere")), "write the results")
}
