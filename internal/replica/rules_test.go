package replica_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
)

func TestModelNames(t *testing.T) {
	for _, good := range []string{"a", "meta-llama/Llama-3-8B", "llama3:8b", "a.b_c-d", strings.Repeat("x", replica.MaxModel)} {
		require.NoError(t, replica.CheckModel(good), good)
	}
	for _, bad := range []string{"", " ", "a b", "a/", "/a", "a//b", "-a", "a\n", "é", strings.Repeat("x", replica.MaxModel+1)} {
		require.Error(t, replica.CheckModel(bad), bad)
	}
}

func TestVariantNames(t *testing.T) {
	for _, good := range []string{"a", "h100-tp2", "v1.2", strings.Repeat("x", replica.MaxVariant)} {
		require.NoError(t, replica.CheckVariant(good), good)
	}
	for _, bad := range []string{"", "a/b", "a:b", "a b", "-a", "a-", strings.Repeat("x", replica.MaxVariant+1)} {
		require.Error(t, replica.CheckVariant(bad), bad)
	}
}
