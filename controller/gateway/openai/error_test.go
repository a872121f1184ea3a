package openai_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/openai"
)

// What an engine says in an error reaches the client in each API's form, on one line, and says the same there.
func FuzzReadError(f *testing.F) {
	for _, text := range []string{
		`{"error":{"message":"m","type":"t","param":"p","code":"c"}}`,
		`{"type":"error","error":{"type":"overloaded_error","message":"m"}}`,
		`{"object":"error","message":"m","type":"BadRequestError","param":null,"code":400}`,
		`{"error":"m"}`, `{"detail":"m"}`, `{"error":null,"detail":[{"loc":["body",0,"x"],"msg":"m"},{"msg":"n"}]}`,
		`{"error":{}}`, `{"error":[]}`, `{"detail":{"code":1e400}}`, `{"message":"\ud800\n\u2028"}`, "{\"error\":\"\xff\"}", `[]`, `null`, ``, `{"error":{"code":{}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e, ok := openai.ReadError(text)
		if !ok {
			return
		}
		require.NotZero(t, e)
		for _, api := range []openai.API{openai.OpenAI, openai.Responses, openai.Messages} {
			object := e.Object(api, 400)
			require.True(t, json.Valid(object), "%s", object)
			require.Equal(t, -1, bytes.IndexAny(object, "\r\n"), "%s", object)
			again, ok := openai.ReadError(object)
			require.True(t, ok, "%s", object)
			want := e
			if api == openai.Messages {
				want.Type = "invalid_request_error"
			}
			require.Equal(t, want, again, "%s", object)
		}
	})
}
