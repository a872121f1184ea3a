package memory_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/memory"
	"remuda/internal/sim/weights"
)

// BenchmarkBank times one sleep and one wake of 256 MiB.
func BenchmarkBank(b *testing.B) {
	path := filepath.Join(b.TempDir(), "w.safetensors")
	_, err := weights.Create(path, weights.Spec{Size: 256 << 20})
	require.NoError(b, err)
	bank, err := memory.Open(path, memory.Rank{}, memory.Place{})
	require.NoError(b, err)
	defer func() { require.NoError(b, bank.Close()) }()
	for _, level := range []int{memory.LevelOffload, memory.LevelDiscard} {
		b.Run(map[int]string{1: "offload", 2: "discard"}[level], func(b *testing.B) {
			b.SetBytes(256 << 20)
			var sleep, wake float64
			for b.Loop() {
				s := b.Elapsed()
				require.NoError(b, bank.Sleep(level, 0))
				w := b.Elapsed()
				require.NoError(b, bank.Wake(b.Context(), false))
				sleep += (w - s).Seconds()
				wake += (b.Elapsed() - w).Seconds()
			}
			b.ReportMetric(1e3*sleep/float64(b.N), "ms/sleep")
			b.ReportMetric(1e3*wake/float64(b.N), "ms/wake")
		})
	}
}
