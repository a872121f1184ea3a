package modelscan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/modelscan"
)

func scan(t *testing.T, body string) modelscan.Head {
	t.Helper()
	head, err := modelscan.Scan([]byte(body))
	require.NoError(t, err, body)
	return head
}

func TestNumbers(t *testing.T) {
	for value, want := range map[string]int{
		`0`: 0, `1`: 1, `16384`: 16384, `-1`: 0, `-0`: 0, `1e3`: 1000, `1.9`: 1, `0.5`: 0, `-2.5`: 0,
		`2147483647`: 1<<31 - 1, `2147483648`: 1<<31 - 1, `99999999999999999999`: 1<<31 - 1, `1e999`: 1<<31 - 1, `-1e999`: 0, `1e-999`: 0,
		`null`: 0, `"7"`: 0, `true`: 0, `[7]`: 0, `{"n":7}`: 0,
	} {
		head := scan(t, `{"model":"m","max_tokens":`+value+`,"n":`+value+`}`)
		require.Equal(t, want, head.MaxTokens, value)
		require.Equal(t, want, head.N, value)
	}
}

func TestMaxTokens(t *testing.T) {
	for members, want := range map[string]int{
		`"x":1`:                     0,
		`"max_tokens":5`:            5,
		`"max_completion_tokens":6`: 6,
		`"max_tokens":5,"max_completion_tokens":6`:               6,
		`"max_completion_tokens":6,"max_tokens":5`:               6,
		`"max_completion_tokens":null,"max_tokens":5`:            5,
		`"max_completion_tokens":6,"max_completion_tokens":null`: 0,
		`"max_tokens":5,"max_tokens":4`:                          4,
		`"max\u005ftokens":5`:                                    5,
		`"options":{"max_tokens":5}`:                             0,
	} {
		require.Equal(t, want, scan(t, `{"model":"m",`+members+`}`).MaxTokens, members)
	}
}

func TestPrompt(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m"}`: "",
		`{"model":"m","messages" : [{"role":"user"}] }`:                 `[{"role":"user"}]`,
		`{"model":"m","prompt":"a \"b\""}`:                              `"a \"b\""`,
		`{"input":["a","b"],"model":"m"}`:                               `["a","b"]`,
		`{"model":"m","prompt":[1,2,3]}`:                                `[1,2,3]`,
		`{"model":"m","prompt":null}`:                                   ``,
		`{"model":"m","messages":[],"prompt":null}`:                     `[]`,
		`{"model":"m","messages":[1],"prompt":"p"}`:                     `"p"`,
		`{"model":"m","prompt":"p","prompt":"q"}`:                       `"q"`,
		`{"model":"m","metadata":{"prompt":"no"},"x":["messages",[1]]}`: ``,
	} {
		p := scan(t, body).Prompt
		require.Equal(t, want, body[p[0]:p[1]], body)
	}
}

func TestTools(t *testing.T) {
	for members, want := range map[string]bool{
		`"x":1`:            false,
		`"tools":[{}]`:     true,
		`"tools":[]`:       true,
		`"functions":[{}]`: true,
		`"response_format":{"type":"json_object"}`:  true,
		`"logprobs":true`:                           true,
		`"logprobs":0`:                              true, // of a completion: those of the tokens themselves
		`"logprobs":false`:                          false,
		`"tools":null,"logprobs":null`:              false,
		`"tools":[{}],"functions":null`:             true,
		`"tools":[{}],"tools":null`:                 false,
		`"metadata":{"tools":[{}]},"tool_choice":1`: false,
	} {
		require.Equal(t, want, scan(t, `{"model":"m",`+members+`}`).Tools, members)
	}
}

func TestPrefix(t *testing.T) {
	prefix := func(text string) uint64 {
		body := fmt.Sprintf(`{"model":"m","prompt":%q}`, text)
		return scan(t, body).Prefix([]byte(body))
	}
	x := strings.Repeat("x", 1023) // with its quote 1024 bytes
	require.Zero(t, modelscan.Head{}.Prefix(nil))
	require.Zero(t, prefix(x[:253]), "255 bytes with both quotes")
	require.NotZero(t, prefix(x[:254]))
	require.Equal(t, prefix(x), prefix(x+"and more"), "only the beginning counts")
	require.NotEqual(t, prefix(x), prefix("y"+x))
	require.NotEqual(t, prefix(x), prefix(x[:1022]+"y"), "the last byte that counts")
	short := "It" + x[:298]
	require.Equal(t, prefix(short), prefix(short+"a second turn"), "a conversation grows")
	require.NotEqual(t, prefix(short), prefix("At"+x[:298]))

	// The place of the prompt in the body does not matter.
	a := `{"model":"m","prompt":"` + x + `"}`
	b := `{"stream":true,"prompt": "` + x + `","model":"m"}`
	require.Equal(t, scan(t, a).Prefix([]byte(a)), scan(t, b).Prefix([]byte(b)))
}

func TestCost(t *testing.T) {
	for _, c := range []struct {
		name string
		head modelscan.Head
		want int64
	}{
		{"nothing said", modelscan.Head{}, 256},
		{"short", modelscan.Head{MaxTokens: 1}, 1},
		{"prompt and answer", modelscan.Head{Prompt: [2]int{100, 4100}, MaxTokens: 50}, 1050},
		{"several answers share the prompt", modelscan.Head{Prompt: [2]int{0, 400}, MaxTokens: 50, N: 3}, 250},
		{"one answer", modelscan.Head{MaxTokens: 50, N: 1}, 50},
		{"absurd claims are cut", modelscan.Head{MaxTokens: 1<<31 - 1, N: 1<<31 - 1}, 1 << 20 * 128},
	} {
		require.Equal(t, c.want, c.head.Cost(), c.name)
	}
}

func BenchmarkPrefix(b *testing.B) {
	body := prompt(4 << 10)
	head, err := modelscan.Scan(body)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if head.Prefix(body) == 0 {
			b.Fatal("no prefix")
		}
	}
}
