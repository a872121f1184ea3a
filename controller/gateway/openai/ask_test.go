package openai_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/openai"
)

func TestAskUsage(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","stream":true}` + "\n ":                                                                   `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`,
		`{"stream_options":null,"model":"m"}`:                                                                   `{"stream_options":{"include_usage":true},"model":"m"}`,
		`{"stream_options":{},"model":"m"}`:                                                                     `{"stream_options":{"include_usage":true},"model":"m"}`,
		`{"stream_options":{"include_usage":false,"continuous_usage_stats":true},"model":"m"}`:                  `{"stream_options":{"include_usage":true,"continuous_usage_stats":true},"model":"m"}`,
		`{"stream_options":{"include_usage":true},"stream_options":{"a":[1],"include_usage":null},"model":"m"}`: `{"stream_options":{"include_usage":true},"stream_options":{"include_usage":true,"a":[1]},"model":"m"}`,
	} {
		h, err := openai.Scan([]byte(body))
		require.NoError(t, err)
		got, asked := openai.AskUsage([]byte(body), h)
		require.False(t, asked, body)
		require.Equal(t, want, string(got))
		require.True(t, json.Valid(got))
	}
	for _, body := range []string{`{"model":"m","stream_options":{"include_usage":true}}`, `{"model":"m","stream_options":{"include_usage":false,"include_usage":true}}`} {
		h, err := openai.Scan([]byte(body))
		require.NoError(t, err)
		got, asked := openai.AskUsage([]byte(body), h)
		require.True(t, asked)
		require.Equal(t, body, string(got))
	}
	bad := `{"model":"m","stream_options":[]}`
	h, err := openai.Scan([]byte(bad))
	require.NoError(t, err)
	got, asked := openai.AskUsage([]byte(bad), h)
	require.False(t, asked)
	require.Equal(t, bad, string(got))
}
