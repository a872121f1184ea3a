package responses_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/responses"
)

// FuzzDecode checks that no body makes the decoder panic, and that what passes is sane.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"input":"x","tools":[{"type":"function","name":"x"}],"tool_choice":{"type":"function","name":"x"}}`,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call_output","output":null}]}`,
		`{"input":[{"type":"function_call","name":"f","arguments":"{}"}],"text":{"format":{"type":"json_schema","schema":{}}}}`,
		`{"input":null}`, `{"input":[null]}`, `{"input":"x","max_output_tokens":0}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, e := responses.Decode(body); e == nil {
			c := r.Conversation(nil)
			require.NotEmpty(t, c.Prompt())
			_, _ = c.Script("m")
			require.Equal(t, responses.InProgress, responses.New(r, "1", "m", 1).Status)
		} else {
			require.NotEmpty(t, e.Message)
		}
	})
}
