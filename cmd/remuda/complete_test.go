package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestCompletionOfNames: what the controller has completes arguments.
func TestCompletionOfNames(t *testing.T) {
	const first, second = "demo:sim:718fcccd-2c9d-8c0a-a554-237c1c1cbc8c", "demo:sim:aa0fcccd-2c9d-8c0a-a554-237c1c1cbc8c"
	r := said(t, map[string]any{
		"GET /v1/models":   []api.ModelSummary{{Name: "demo"}, {Name: "llama"}},
		"GET /v1/replicas": []api.Replica{{Name: first, ID: first[9:]}, {Name: second, ID: second[9:]}},
		"GET /v1/nodes":    []api.Node{{Name: "gpu-1", ID: "11111111-2222", GPUs: []api.GPU{{UUID: gpuA}}}},
		"GET /v1/keys":     []api.Key{{Name: "team"}},
	})
	t.Setenv(api.EnvAddress, r.url)
	for line, want := range map[string][]string{
		"remuda sc":                                   {"scale"},
		"remuda model s":                              {"start", "status", "stop"},
		"remuda model status ":                        {"demo", "llama"},
		"remuda scale l":                              {"llama"},
		"remuda scale llama ":                         nil,
		"remuda scale -timeout 1m l":                  {"llama"},
		"remuda scale llama 2 -det":                   {"-detach"},
		"remuda replica list -model ":                 {"demo", "llama"},
		"remuda logs ":                                {"demo:sim:718fcccd", "demo:sim:aa0fcccd"},
		"remuda logs demo:sim:7":                      {"718fcccd"},
		"remuda logs demo:sim:":                       {"718fcccd", "aa0fcccd"},
		"remuda logs 71":                              {first[9:]},
		"remuda evict l":                              {"llama"},
		"remuda node cordon g":                        {"gpu-1"},
		"remuda node cordon GPU-":                     {gpuA},
		"remuda key rotate ":                          {"team"},
		"remuda key create ":                          nil,
		"remuda switch set pause-":                    {"pause-reconcile"},
		"remuda model apply testdata/tables.":         {"testdata/tables.golden"},
		"remuda model list -js":                       {"-json"},
		"remuda gms-":                                 nil,
		"remuda dedicated set llama=2 d":              {"demo"},
		"remuda model status demo -address http://x ": nil,
	} {
		t.Run(line, func(t *testing.T) {
			t.Setenv(envCompletion, line)
			last := line[strings.LastIndexByte(line, ' ')+1:]
			word := last[strings.LastIndexByte(last, ':')+1:] // as bash has it
			if strings.HasPrefix(last, "http") {
				word = last
			}
			got := remuda(t, "remuda", word, "")
			require.Zero(t, got.code, got.errout)
			lines := slices.Sorted(slices.Values(strings.Fields(got.out)))
			require.Equal(t, want, lines)
		})
	}
	// Without a controller there are no names, and no errors.
	t.Setenv(api.EnvAddress, "http://127.0.0.1:1")
	t.Setenv(envCompletion, "remuda model status ")
	require.Equal(t, result{}, remuda(t, "remuda", "", "status"))
}
