package dialect_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/lockd/engine/dialect"
)

func TestKeyOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dialect string
		command []string
		env     string
		want    string
	}{
		"none":                           {"vllm", []string{"vllm", "serve", "m"}, "", ""},
		"vLLM's flag":                    {"vllm", []string{"vllm", "serve", "--api-key", "k", "m"}, "e", "k"},
		"vLLM's flag with =":             {"vllm", []string{"vllm", "serve", "--api-key=k"}, "", "k"},
		"vLLM's flag without a value":    {"vllm", []string{"vllm", "serve", "--api-key"}, "", ""},
		"vLLM's variable":                {"vllm", []string{"vllm"}, "e", "e"},
		"the simulator's variable":       {"sim", []string{"remuda", "sim"}, "e", "e"},
		"SGLang's flag":                  {"sglang", []string{"python", "--api-key", "k"}, "", "k"},
		"SGLang has no variable":         {"sglang", []string{"python"}, "e", ""},
		"Ollama has no key":              {"ollama", []string{"ollama", "--api-key", "k"}, "e", ""},
		"a flag whose name goes further": {"vllm", []string{"vllm", "--api-key-file=f"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			getenv := func(name string) string {
				require.Equal(t, "VLLM_API_KEY", name)
				return tc.env
			}
			require.Equal(t, tc.want, dialect.KeyOf(tc.dialect, tc.command, getenv))
		})
	}
}

func TestWithKey(t *testing.T) {
	t.Parallel()
	for _, name := range dialect.Names() {
		args, env, ok := dialect.WithKey(name, "k")
		require.Equal(t, name != "ollama", ok, name)
		if ok {
			getenv := func(string) string {
				if len(env) == 0 {
					return ""
				}
				return env[0][len("VLLM_API_KEY="):]
			}
			require.Equal(t, "k", dialect.KeyOf(name, args, getenv), name)
		}
	}
}

// TestRequestsHaveTheKey: an engine may ask for it at any route.
func TestRequestsHaveTheKey(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer srv.Close()
	for key, ok := range map[string]bool{"k": true, "": false, "other": false} {
		d, err := dialect.New("vllm", dialect.Config{URL: srv.URL, Model: "m", Key: key})
		require.NoError(t, err)
		if err = d.Healthy(t.Context()); ok {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "401")
		}
	}
}
