package continuation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/continuation"
)

const chatBody = `{"stream":true,"messages":[{"role":"user","content":"hi"}]`

// recorder records a chat whose body has such further fields.
func recorder(t *testing.T, fields string) *continuation.Recorder {
	t.Helper()
	r, err := continuation.NewRecorder(true, []byte(chatBody+fields+`}`))
	require.NoError(t, err)
	return r
}

// event is a chat's event with these choices and further fields.
func event(id string, created int, choices, fields string) string {
	return fmt.Sprintf(`data: {"id":%q,"object":"chat.completion.chunk","created":%d,"model":"m-%s","choices":[%s]%s}`, id, created, id, choices, fields) + "\n\n"
}

func delta(text string) string {
	return `{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}`
}

const (
	role = `{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`
	stop = `{"index":0,"delta":{"content":""},"finish_reason":"stop","stop_reason":null}`
)

func counts(prompt, completion int) string {
	return fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":9}}`, prompt, prompt+completion, completion)
}

func TestSplice(t *testing.T) {
	t.Parallel()
	r := recorder(t, `,"max_tokens":9,"stream_options":{"include_usage":true}`)
	r.Feed([]byte(event("one", 1, role, "") + ": alive\n\n" + event("one", 1, delta("a"), "") + event("one", 1, delta("b"), "")))
	body, err := r.Request()
	require.NoError(t, err)
	require.JSONEq(t, `{"stream":true,"max_tokens":7,"stream_options":{"include_usage":true},"continue_final_message":true,"add_generation_prompt":false,
		"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ab"}]}`, string(body))
	in := event("two", 2, role, "") + ": alive\n\n" + event("two", 2, delta("c"), "") + event("two", 2, stop, "") + event("two", 2, "", counts(30, 2)) + "data: [DONE]\n\n"
	want := ": alive\n\n" + event("one", 1, delta("c"), "") + event("one", 1, stop, "") + event("one", 1, "", counts(28, 4)) + "data: [DONE]\n\n"
	assert.Equal(t, want, string(r.Splice([]byte(in))))
	require.NoError(t, r.Err())
	_, err = r.Request()
	require.ErrorIs(t, err, continuation.ErrComplete)
	assert.Empty(t, r.Tail())
}

func TestSpliceCountsInEveryEvent(t *testing.T) {
	t.Parallel()
	r := recorder(t, `,"stream_options":{"continuous_usage_stats":true}`)
	// Two tokens in one event, and one that was held back.
	r.Feed([]byte(event("one", 1, role, counts(20, 0)) + event("one", 1, delta("ab"), counts(20, 2)) + event("one", 1, delta(""), counts(20, 3))))
	require.Equal(t, 2, r.Tokens())
	_, err := r.Request()
	require.NoError(t, err)
	got := r.Splice([]byte(event("two", 2, role, counts(99, 0)) + event("two", 2, delta("c"), counts(99, 1)) + event("two", 2, "", counts(99, 1))))
	assert.Equal(t, event("one", 1, delta("c"), counts(20, 3))+event("one", 1, "", counts(20, 3)), string(got))
}

// TestHeldBackTokens are made again: they are no part of the text, until a later one is.
func TestHeldBackTokens(t *testing.T) {
	t.Parallel()
	r := recorder(t, "")
	r.Feed([]byte(event("one", 1, role, "") + event("one", 1, delta("a"), "") + event("one", 1, delta(""), "") + event("one", 1, delta(""), "")))
	assert.Equal(t, 1, r.Tokens())
	r.Feed([]byte(event("one", 1, delta("bcd"), "")))
	assert.Equal(t, 4, r.Tokens())
}

func TestTheRoleComesOnce(t *testing.T) {
	t.Parallel()
	t.Run("the first stream had none", func(t *testing.T) {
		t.Parallel()
		r := recorder(t, "")
		r.Feed([]byte(": alive\n\n"))
		_, err := r.Request()
		require.NoError(t, err)
		in := event("two", 2, role, "") + event("two", 2, delta("c"), "")
		assert.Equal(t, in, string(r.Splice([]byte(in))), "and no id either")
		_, err = r.Request()
		require.NoError(t, err)
		assert.Equal(t, event("two", 2, delta("d"), ""), string(r.Splice([]byte(event("three", 3, role, "")+event("three", 3, delta("d"), "")))))
	})
	t.Run("an engine names it in each event", func(t *testing.T) {
		t.Parallel()
		r := recorder(t, "")
		named := func(text string) string {
			return `{"index":0,"delta":{"role":"assistant","content":"` + text + `"},"finish_reason":null}`
		}
		r.Feed([]byte(event("one", 1, named("a"), "") + event("one", 1, named("b"), "")))
		assert.Equal(t, 2, r.Tokens())
		_, err := r.Request()
		require.NoError(t, err)
		end := `{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}`
		assert.Equal(t, event("one", 1, named("c"), "")+event("one", 1, end, ""), string(r.Splice([]byte(event("two", 2, named("c"), "")+event("two", 2, end, "")))))
		assert.Equal(t, 3, r.Tokens(), "its end is no token")
	})
}

func TestAnOpenEventIsEnded(t *testing.T) {
	t.Parallel()
	r := recorder(t, "")
	r.Feed([]byte(strings.TrimSuffix(event("one", 1, delta("a"), ""), "\n")))
	_, err := r.Request()
	require.NoError(t, err)
	assert.Equal(t, "\n"+event("one", 1, delta("b"), ""), string(r.Splice([]byte(event("two", 2, delta("b"), "")))))
}

func TestLinesInParts(t *testing.T) {
	t.Parallel()
	one := event("one", 1, delta("a"), "")
	t.Run("the first stream's", func(t *testing.T) {
		t.Parallel()
		r := recorder(t, "")
		for i := range len(one) - 1 {
			r.Feed([]byte{one[i]})
			if one[i] != '\n' {
				_, err := r.Request()
				require.ErrorIs(t, err, continuation.ErrHalfLine)
			}
		}
		assert.Equal(t, 1, r.Tokens())
		_, err := r.Request()
		require.NoError(t, err)
	})
	t.Run("the next stream's", func(t *testing.T) {
		t.Parallel()
		r := recorder(t, "")
		r.Feed([]byte(one))
		_, err := r.Request()
		require.NoError(t, err)
		assert.Empty(t, r.Splice([]byte("data: {\"choices\"")), "the client gets whole lines")
		_, err = r.Request()
		require.NoError(t, err, "so that there can be another break")
		var got strings.Builder
		for _, c := range []byte(event("two", 2, delta("b"), "")) {
			got.Write(r.Splice([]byte{c}))
		}
		assert.Equal(t, event("one", 1, delta("b"), ""), got.String())
	})
}

// TestNamesThatAreNotThere are not put in the place of others.
func TestNamesThatAreNotThere(t *testing.T) {
	t.Parallel()
	r := recorder(t, "")
	r.Feed([]byte(`data: {"id":"one","choices":[` + delta("a") + "]}\n\n"))
	_, err := r.Request()
	require.NoError(t, err)
	assert.Equal(t, `data: {"model":"m","id":"one","choices":[`+delta("b")+"]}\n\n", string(r.Splice([]byte(`data: {"model":"m","id":"two","choices":[`+delta("b")+"]}\n\n"))))
}

func TestCRLF(t *testing.T) {
	t.Parallel()
	r := recorder(t, "")
	crlf := func(s string) []byte { return []byte(strings.ReplaceAll(s, "\n", "\r\n")) }
	r.Feed(crlf(event("one", 1, delta("a"), "")))
	_, err := r.Request()
	require.NoError(t, err)
	assert.Equal(t, string(crlf(event("one", 1, delta("b"), "")+"data: [DONE]\n\n")), string(r.Splice(crlf(event("two", 2, delta("b"), "")+"data: [DONE]\n\n"))))
	_, err = r.Request()
	require.ErrorIs(t, err, continuation.ErrComplete)
}

func TestTail(t *testing.T) {
	t.Parallel()
	const tail = "data: [DONE]\n\n"
	length := func(usage string) string {
		return `data: {"id":"one","created":1,"model":"m-one","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}]` + usage + "}\n\n"
	}
	usage := func(prompt, completion int) string {
		return fmt.Sprintf(`"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, prompt, prompt+completion, completion)
	}
	final := func(u string) string {
		return `data: {"id":"one","created":1,"model":"m-one","object":"chat.completion.chunk","choices":[],` + u + "}\n\n"
	}
	two := event("one", 1, role, "") + event("one", 1, delta("a"), "") + event("one", 1, delta("b"), "")
	counted := event("one", 1, role, counts(5, 0)) + event("one", 1, delta("a"), counts(5, 1)) + event("one", 1, delta("b"), counts(5, 2))
	const all = `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`
	tests := []struct {
		name, fields, stream, want string
	}{
		{"all tokens were said", `,"max_tokens":2`, two, length("") + tail},
		{"also the new name", `,"max_completion_tokens":2,"max_tokens":9`, two, length("") + tail},
		{"within an event", `,"max_tokens":2`, strings.TrimSuffix(two, "\n"), "\n" + length("") + tail},
		{"with the usage", `,"max_tokens":2` + all, counted, length(","+usage(5, 2)) + final(usage(5, 2)) + tail},
		{"behind the finish reason", `,"max_tokens":9`, two + event("one", 1, stop, ""), tail},
		{"and the usage", `,"max_tokens":9` + all, counted + event("one", 1, stop, counts(5, 3)), final(usage(5, 3)) + tail},
		{"behind the usage", `,"max_tokens":9` + all, counted + event("one", 1, stop, counts(5, 3)) + event("one", 1, "", counts(5, 3)), tail},
		{"behind [DONE]", "", two + event("one", 1, stop, "") + tail, ""},
		{"the end of [DONE]", "", two + event("one", 1, stop, "") + strings.TrimSuffix(tail, "\n"), "\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := recorder(t, tt.fields)
			r.Feed([]byte(tt.stream))
			_, err := r.Request()
			require.ErrorIs(t, err, continuation.ErrComplete)
			assert.Equal(t, tt.want, string(r.Tail()))
			assert.Empty(t, r.Tail(), "once")
		})
	}
	t.Run("of a completion", func(t *testing.T) {
		t.Parallel()
		r, err := continuation.NewRecorder(false, []byte(`{"stream":true,"prompt":"x","max_tokens":1}`))
		require.NoError(t, err)
		assert.Nil(t, r.Tail(), "text is missing")
		r.Feed([]byte(said(false, "a")))
		_, err = r.Request()
		require.ErrorIs(t, err, continuation.ErrComplete)
		assert.Equal(t, `data: {"id":"1","created":7,"model":"m","object":"text_completion","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null}]}`+"\n\n"+tail, string(r.Tail()))
	})
}

// TestTheUsageAlone: the text is complete, and only an engine knows how many tokens the
// prompt has.
func TestTheUsageAlone(t *testing.T) {
	t.Parallel()
	const asked = `,"stream_options":{"include_usage":true}`
	begun := event("one", 1, role, "") + event("one", 1, delta("a"), "") + event("one", 1, delta("b"), "")
	second := event("two", 2, role, "") + event("two", 2, `{"index":0,"delta":{"content":"z"},"finish_reason":"length"}`, "")
	t.Run("behind the finish reason", func(t *testing.T) {
		t.Parallel()
		r := recorder(t, `,"min_tokens":2`+asked)
		r.Feed([]byte(begun + event("one", 1, stop, "")))
		body, err := r.Request()
		require.NoError(t, err)
		assert.JSONEq(t, chatBody+`,"min_tokens":0,"max_tokens":1`+asked+`}`, string(body))
		assert.Empty(t, r.Splice([]byte(second)))
		// That engine breaks off as well.
		again, err := r.Request()
		require.NoError(t, err)
		assert.Equal(t, body, again)
		assert.Equal(t, event("one", 1, "", counts(12, 3))+"data: [DONE]\n\n", string(r.Splice([]byte(second+event("two", 2, "", counts(12, 1))+"data: [DONE]\n\n"))))
	})
	t.Run("before it", func(t *testing.T) {
		t.Parallel()
		r := recorder(t, `,"max_tokens":2`+asked)
		r.Feed([]byte(begun))
		body, err := r.Request()
		require.NoError(t, err)
		assert.JSONEq(t, chatBody+`,"max_tokens":1`+asked+`}`, string(body))
		got := string(r.Splice([]byte(second + event("two", 2, "", counts(12, 1)) + "data: [DONE]\n\n")))
		a := read(t, got)
		assert.Equal(t, "length", a.Finish)
		assert.Equal(t, 1, a.Finishes)
		assert.Equal(t, usage{12, 2, 14}, a.Usage)
		assert.True(t, a.Done)
		assert.Empty(t, a.Text)
	})
	t.Run("no engine to be had", func(t *testing.T) {
		t.Parallel()
		r := recorder(t, `,"max_tokens":2`+asked)
		r.Feed([]byte(begun))
		_, err := r.Request()
		require.NoError(t, err)
		a := read(t, string(r.Tail()))
		assert.Equal(t, "length", a.Finish)
		assert.Zero(t, a.Usages, "it is not made up")
		assert.True(t, a.Done)
	})
}

func TestAnswersThatCannotGoOn(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, stream, want string }{
		{"reasoning", event("one", 1, `{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}`, ""), "has reasoning_content"},
		{"a tool call", event("one", 1, `{"index":0,"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}`, ""), "has tool_calls"},
		{"two choices", event("one", 1, role+","+role, ""), "not the JSON of one response"},
		{"another choice", event("one", 1, `{"index":1,"delta":{"content":"x"}}`, ""), "not the JSON of one response"},
		{"no choices", `data: {"object":"error","message":"boom"}` + "\n\n", "the engine sent an error"},
		{"an error", `data: {"error":{"message":"boom"}}` + "\n\n", "the engine sent an error"},
		{"no JSON", "data: {\"choices\":[{\n\n", "not the JSON of one response"},
		{"no object", "data: 7\n\n", "not the JSON of one response"},
		{"too much", event("one", 1, delta(strings.Repeat("x", 101)), ""), "longer than the 100 bytes"},
		{"bit by bit too much", strings.Repeat(event("one", 1, delta(strings.Repeat("x", 40)), ""), 3), "longer than the 100 bytes"},
		{"a long line", "data: " + strings.Repeat("x", 1<<20), "a line of the stream has more than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := recorder(t, "")
			r.SetLimit(100)
			r.Feed([]byte(tt.stream))
			require.ErrorContains(t, r.Err(), tt.want)
			_, err := r.Request()
			require.ErrorContains(t, err, tt.want)

			r = recorder(t, "")
			r.SetLimit(100)
			_, err = r.Request()
			require.NoError(t, err)
			got := r.Splice([]byte(tt.stream))
			require.ErrorContains(t, r.Err(), tt.want)
			if strings.HasSuffix(tt.stream, "\n") {
				assert.Equal(t, tt.stream, string(got), "it passes as it is")
			}
		})
	}
	r := recorder(t, "")
	r.Feed([]byte(event("one", 1, `{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[],"refusal":null,"reasoning":""}}`, `,"usage":null`) + event("one", 1, delta("a"), "")))
	require.NoError(t, r.Err(), "what is empty is nothing")
	assert.Equal(t, 1, r.Tokens())
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := ": alive\n\nevent: x\nid: 7\nretry: 9\ndata\n" + event("one", 1, delta("a \\\"error\\\" b"), "") + event("one", 1, stop, "") + "data: [DONE]\n\n"
	n, err := continuation.Check([]byte(good))
	require.NoError(t, err)
	require.Equal(t, len(good), n)
	tests := []struct{ name, bad, want string }{
		{"garbage", "\x16\x03\x01\xff\xfe\n", "not a server-sent event"},
		{"a page", "<html>\n", "not a server-sent event"},
		{"half an event", "data: {\"choices\":[{\"index\"\n", "not JSON"},
		{"no UTF-8", "data: {\"choices\":[],\"x\":\"\xff\"}\n", "not JSON"},
		{"an error", `data: {"error":{"message":"boom"}}` + "\n", "an error in its stream"},
		{"an old error", `data: {"object":"error","message":"boom"}` + "\n", "an error in its stream"},
		{"an event of type error", "event: error\n", "an error in its stream"},
		{"aborted", strings.Replace(event("one", 1, stop, ""), `"stop"`, `"abort"`, 1), "with the finish reason abort"},
		{"given up", strings.Replace(event("one", 1, stop, ""), `"stop"`, `"error"`, 1), "with the finish reason error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, err := continuation.Check([]byte(good + tt.bad + good))
			require.ErrorContains(t, err, tt.want)
			assert.Equal(t, len(good), n)
		})
	}
}

// FuzzStream feeds and splices anything: nothing breaks, and whole events stay whole.
func FuzzStream(f *testing.F) {
	f.Add([]byte(event("one", 1, role, counts(1, 0))+event("one", 1, delta("a"), counts(1, 1))+": x\n\n"+event("one", 1, stop, "")+"data: [DONE]\n\n"), 70)
	f.Add([]byte("data: {\"choices\":[{\"delta\":[],\"index\":\"\\\"\"}]}\r\n\r\ndata:{\n"), 3)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		r, err := continuation.NewRecorder(true, []byte(chatBody+`,"max_tokens":3,"stream_options":{}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.SetLimit(1 << 10)
		cut = max(0, min(cut, len(stream)))
		r.Feed(stream[:cut])
		if _, err := r.Request(); err != nil {
			r.Tail()
			return
		}
		rest := stream[cut:]
		n, err := continuation.Check(rest)
		if n > len(rest) || err == nil && n != len(rest) {
			t.Fatalf("%d of %d bytes are good: %v", n, len(rest), err)
		}
		out := append([]byte(nil), r.Splice(rest[:n])...)
		if n, err := continuation.Check(out); err != nil {
			t.Fatalf("good lines became bad ones at byte %d: %v\n%s", n, err, out)
		}
		if _, err := r.Request(); err != nil {
			r.Tail()
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	line := []byte(event("chatcmpl-0123456789abcdef", 1, delta(" horse"), ""))
	run := func(name string, f func(*continuation.Recorder)) {
		b.Run(name, func(b *testing.B) {
			r, err := continuation.NewRecorder(true, []byte(chatBody+`}`))
			if err != nil {
				b.Fatal(err)
			}
			r.SetLimit(1 << 30)
			r.Feed(line)
			if _, err := r.Request(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				f(r)
			}
		})
	}
	run("Feed", func(r *continuation.Recorder) { r.Feed(line) })
	run("Splice", func(r *continuation.Recorder) { r.Splice(line) })
	run("Check", func(*continuation.Recorder) { _, _ = continuation.Check(line) })
}

// TestRecordWithoutMemory: the record asks for what it needs, and ends where there is no more.
func TestRecordWithoutMemory(t *testing.T) {
	t.Parallel()
	r := recorder(t, "")
	taken := 0
	r.Bound(func(n int) bool {
		if taken+n > 5000 {
			return false
		}
		taken += n
		return true
	})
	piece := event("one", 1, delta(strings.Repeat("x", 100)), "")
	for range 40 {
		r.Feed([]byte(piece))
	}
	require.NoError(t, r.Err())
	require.GreaterOrEqual(t, taken, 4000)
	_, err := r.Request()
	require.NoError(t, err)
	require.Contains(t, string(r.Splice([]byte(piece))), "xxx")
	for range 20 {
		require.Contains(t, string(r.Splice([]byte(piece))), "xxx", "the stream goes on")
	}
	require.ErrorIs(t, r.Err(), continuation.ErrMemory)
	_, err = r.Request()
	require.ErrorIs(t, err, continuation.ErrMemory)
}
