package accesslog_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/accesslog"
)

// record is a request with something in every field.
func record() accesslog.Record {
	return accesslog.Record{
		Time: time.Date(2026, 11, 22, 5, 6, 7, 123456789, time.FixedZone("", 3600)),
		ID:   "req-1", ClientID: "mine", TraceID: "0af7651916cd43dd8448eb211c80319c", Client: "10.1.2.3:5678", Key: "team-a",
		Method: "POST", Path: "/v1/chat/completions", Model: "llama", Replica: "llama:h100:7f3a",
		Status: 200, Code: "engine_cut_off", Queue: 1500 * time.Millisecond, FirstByte: 2*time.Second + 34*time.Microsecond,
		Duration: 61*time.Second + 999999999, Attempts: 2, RequestBytes: 220000, ResponseBytes: 1 << 40,
		Stream: true, Continued: true, UserAgent: "openai-python/2.0",
		PromptTokens: 52000, CachedTokens: 48000, CompletionTokens: 300, TokensEstimated: true,
	}
}

func lineOf(t *testing.T, r accesslog.Record) string {
	t.Helper()
	line, err := r.MarshalJSON()
	require.NoError(t, err)
	return string(line)
}

func TestLine(t *testing.T) {
	require.Equal(t, `{"time":"2026-11-22T04:06:07.123456Z","id":"req-1","client_id":"mine","trace_id":"0af7651916cd43dd8448eb211c80319c",`+
		`"client":"10.1.2.3:5678","key":"team-a","method":"POST","path":"/v1/chat/completions","model":"llama",`+
		`"replica":"llama:h100:7f3a","status":200,"code":"engine_cut_off","queue_s":1.5,"first_byte_s":2.000034,`+
		`"duration_s":61.999999,"attempts":2,"request_bytes":220000,"response_bytes":1099511627776,"stream":true,`+
		`"continued":true,"user_agent":"openai-python/2.0","prompt_tokens":52000,"cached_tokens":48000,`+
		`"completion_tokens":300,"tokens_estimated":true}`, lineOf(t, record()))
	require.Equal(t, `{"time":"1970-01-01T00:00:00.000000Z","id":"","client_id":"","trace_id":"","client":"","key":"","method":"","path":"",`+
		`"model":"","replica":"","status":0,"code":"","queue_s":0,"first_byte_s":null,"duration_s":0.000001,`+
		`"attempts":0,"request_bytes":0,"response_bytes":0,"stream":false,"continued":false,"user_agent":""}`,
		lineOf(t, accesslog.Record{Time: time.Unix(0, 0), Queue: -time.Second, Duration: 1999 * time.Nanosecond}))
}

// What a client calls itself cannot fake a line, nor a field.
func TestEscapes(t *testing.T) {
	for in, want := range map[string]string{
		"a\"}\n{\"status\":200":  `a\"}\n{\"status\":200`,
		`back\slash`:             `back\\slash`,
		"\x00\t\x1b[31m\x7f":     `\u0000\t\u001b[31m�`,
		"bad \xff utf8 \xe2\x82": `bad � utf8 ��`,
		"größe 模型 🐎":             "größe 模型 🐎",
		"\u0085\u009b\u2028":     `��\u2028`,
	} {
		require.Contains(t, lineOf(t, accesslog.Record{UserAgent: in}), `"user_agent":"`+want+`"}`)
	}
}

func TestLongTextsAreCut(t *testing.T) {
	r := accesslog.Record{Model: strings.Repeat("x", 512), Path: strings.Repeat("y", 513), UserAgent: "1" + strings.Repeat("ü", 400)}
	var got struct {
		Path, Model string
		UserAgent   string `json:"user_agent"`
	}
	require.NoError(t, json.Unmarshal([]byte(lineOf(t, r)), &got))
	require.Equal(t, r.Model, got.Model)
	require.Equal(t, strings.Repeat("y", 512)+"…", got.Path)
	require.Equal(t, "1"+strings.Repeat("ü", 255)+"…", got.UserAgent)
}

// FuzzText checks that the record is one line of valid JSON with the client's text, whatever
// the text is: at most 512 bytes, without control characters that JSON does not escape.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\\n\x00\x7f", "\xff\xc0\xaf", "\u2028é🐎", strings.Repeat("\u0085", 300), "\xed\xa0\x80", "<&>"} {
		f.Add(s, 1)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		line := lineOf(t, accesslog.Record{Path: s, Status: n, UserAgent: s})
		require.True(t, utf8.ValidString(line))
		require.NotContains(t, line, "\u2028")
		require.False(t, strings.ContainsFunc(line, unicode.IsControl), "%q", line)
		var got struct {
			Path   string
			Status int
			Agent  string `json:"user_agent"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		require.Equal(t, n, got.Status)
		require.Equal(t, got.Path, got.Agent)
		var want strings.Builder
		for _, r := range s { // bytes that are not UTF-8 are U+FFFD here
			if r >= 0x7f && unicode.IsControl(r) {
				r = utf8.RuneError
			}
			want.WriteRune(r)
		}
		if len(s) <= 512 {
			require.Equal(t, want.String(), got.Path)
			return
		}
		cut, ok := strings.CutSuffix(got.Path, "…")
		require.True(t, ok)
		require.GreaterOrEqual(t, utf8.RuneCountInString(cut), 512/utf8.UTFMax)
		// The cut may leave the beginning of what was no character.
		require.True(t, strings.HasPrefix(want.String(), strings.TrimRight(cut, "\ufffd")))
	})
}
