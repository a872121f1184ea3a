package closest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/closest"
)

func TestWord(t *testing.T) {
	words := []string{"model list", "model apply", "scale"}
	for given, want := range map[string]string{
		"modle list": "model list", "scale": "scale", "scal": "scale", "model aply": "model apply",
		"sca": "scale", "sc": "", "decision": "", "": "",
	} {
		require.Equal(t, want, closest.Word(given, words), given)
	}
	require.Empty(t, closest.Word("a", nil))
	require.Empty(t, closest.Word("2", []string{"1"}), "of one letter nothing is near")
	require.Equal(t, "model list", closest.Word("model lsit", []string{"model init", "model list"}), "of equals the one that begins like it")
}
