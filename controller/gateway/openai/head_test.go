package openai_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/openai"
)

func scan(t *testing.T, body string) openai.Head {
	t.Helper()
	head, err := openai.Scan([]byte(body))
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
		`"max_output_tokens":6,"max_tokens":5`:                   6,
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
		require.Equal(t, want, string(p.Of([]byte(body))), body)
	}
}

func TestPrefix(t *testing.T) {
	prefix := func(text string) uint64 {
		body := fmt.Sprintf(`{"model":"m","prompt":%q}`, text)
		return scan(t, body).Prefix([]byte(body))
	}
	x := strings.Repeat("x", 1023) // with its quote 1024 bytes
	require.Zero(t, openai.Head{}.Prefix(nil))
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
		name, members string
		least         int64 // without the body
		embeds        bool
	}{
		{name: "nothing said", members: `"x":1`, least: 256},
		{name: "short", members: `"max_tokens":1`, least: 1},
		{name: "several answers share the prompt", members: `"max_tokens":50,"n":3`, least: 150},
		{name: "a list of prompts has an answer each", members: `"prompt":["a","b","c"],"max_tokens":50`, least: 150},
		{name: "and several where they are wanted", members: `"prompt":["a","b","c"],"max_tokens":50,"n":2`, least: 300},
		{name: "a list of lists of tokens too", members: `"prompt":[[1,2],[3]],"max_tokens":50`, least: 100},
		{name: "a list of tokens is one prompt", members: `"prompt":[1,2,3],"max_tokens":50`, least: 50},
		{name: "messages are one prompt", members: `"messages":[{"role":"user"},{"role":"user"}],"max_tokens":50`, least: 50},
		{name: "the prompt counts by its bytes", members: `"max_tokens":50,"prompt":"` + strings.Repeat("x", 4000) + `"`, least: 50},
		{name: "a key that follows does not hide it", members: `"max_tokens":50,"prompt":"` + strings.Repeat("x", 4000) + `","input":0`, least: 50},
		{name: "absurd claims are cut", members: `"max_tokens":2147483647,"n":2147483647`, least: 1 << 20 * 128},
		{name: "and of lists too", members: `"max_tokens":2147483647,"n":100,"prompt":["a","b"]`, least: 1 << 20 * 128},
		{name: "no answer", members: `"max_tokens":50,"input":"x"`, embeds: true},
	} {
		body := []byte(`{"model":"m",` + c.members + `}`)
		head := scan(t, string(body))
		require.Equal(t, int64(len(body))/4+c.least, head.Cost(body, !c.embeds), c.name)
	}
	require.EqualValues(t, 1, openai.Head{}.Cost(nil, false))
}

func BenchmarkPrefix(b *testing.B) {
	body := prompt(4 << 10)
	head, err := openai.Scan(body)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if head.Prefix(body) == 0 {
			b.Fatal("no prefix")
		}
	}
}
