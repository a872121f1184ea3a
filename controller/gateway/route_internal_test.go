package gateway

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoutesOfEngines: a request goes to kinds of engines that have its route, and to kinds
// of which nothing is known.
func TestRoutesOfEngines(t *testing.T) {
	paths := func(engine string) []string {
		var have []string
		for _, path := range slices.Sorted(maps.Keys(engineRoutes)) {
			if engineRoutes[path].has([]string{engine}) {
				have = append(have, path)
			}
		}
		return have
	}
	all := slices.Sorted(maps.Keys(engineRoutes))
	require.Equal(t, all, paths("sim"))
	require.Equal(t, all, paths("another"))
	require.Equal(t, []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"}, paths("ollama"))
	require.Equal(t, []string{"/detokenize", "/tokenize", "/v1/audio/transcriptions", "/v1/chat/completions", "/v1/completions",
		"/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens", "/v1/rerank", "/v1/responses", "/v1/score"}, paths("sglang"))
	require.True(t, engineRoutes["/pooling"].has([]string{"sglang", "vllm"}), "one of the model's variants has it")
	require.False(t, storedRoutes[""]["DELETE"].has([]string{"sglang"}))
	require.True(t, storedRoutes["/cancel"]["POST"].has([]string{"sglang"}))
}
