package long_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/long"
)

func TestPick(t *testing.T) {
	for value, want := range map[string]int{"": 3, "0": 3, "true": 3, "1": 300} {
		t.Setenv("REMUDA_LONG", value)
		require.Equal(t, want, long.Pick(3, 300), "REMUDA_LONG=%q", value)
		require.Equal(t, want == 300, long.Enabled(), "REMUDA_LONG=%q", value)
	}
}
