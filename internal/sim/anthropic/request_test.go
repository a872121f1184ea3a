package anthropic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/anthropic"
)

// FuzzDecode checks that no body makes the decoder panic, and that what passes is sane.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"max_tokens":5,"system":"s","messages":[{"role":"user","content":"x"}],"tools":[{"name":"x","input_schema":{"type":"object"}}]}`,
		`{"max_tokens":5,"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"a"}]}]}]}`,
		`{"max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{"a":1}}]}],"tool_choice":{"type":"any"}}`,
		`{"max_tokens":5,"messages":[{"role":"user","content":null}]}`, `{"messages":[null]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, e := anthropic.Decode(body); e == nil {
			require.Positive(t, *r.MaxTokens)
			c := r.Conversation()
			require.NotEmpty(t, c.Prompt())
			_, _ = c.Script("m")
		} else {
			require.NotEmpty(t, e.Message)
		}
	})
}
