package sim_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

const hello = `"messages":[{"role":"user","content":"Hello"}]`

var helloChat = []text.Message{{Role: "user", Content: "Hello"}}

// collect joins a stream's events: the text per choice, the finish reasons and
// the number of events that carried a token.
func collect(t *testing.T, events []response) (texts, reasons map[int]string, tokens map[int]int) {
	t.Helper()
	texts, reasons, tokens = map[int]string{}, map[int]string{}, map[int]int{}
	for _, e := range events {
		for _, c := range e.Choices {
			require.Empty(t, reasons[c.Index], "an event after the last")
			if c.Delta.Role != nil {
				continue
			}
			if c.Delta.Content != nil {
				c.Text = *c.Delta.Content
			}
			texts[c.Index] += c.Text
			tokens[c.Index]++
			if c.Finish != nil {
				reasons[c.Index] = *c.Finish
			}
		}
	}
	return texts, reasons, tokens
}

func TestChatStream(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, limit := range []int{1, 7, 0} {
		want := answers.Chat(modelName, helloChat, limit)
		maxTokens := ""
		if limit > 0 {
			maxTokens = fmt.Sprintf(`"max_tokens":%d,`, limit)
		}
		before := time.Now().Unix()
		events := s.stream(t.Context(), "/v1/chat/completions",
			`{"model":"`+modelName+`","stream":true,"stream_options":{"include_usage":true},`+maxTokens+hello+`}`).all()
		texts, reasons, tokens := collect(t, events)
		assert.Equal(t, map[int]string{0: want.Text}, texts)
		assert.Equal(t, map[int]string{0: want.Finish}, reasons)
		assert.Equal(t, map[int]int{0: want.Tokens}, tokens, "one event per token")

		first, last := events[0], events[len(events)-1]
		assert.Equal(t, "assistant", *first.Choices[0].Delta.Role)
		assert.Empty(t, last.Choices)
		require.NotNil(t, last.Usage)
		prompt := text.Count(text.Render(helloChat, true, false))
		assert.Equal(t, []int{prompt, want.Tokens, prompt + want.Tokens}, []int{last.Usage.Prompt, last.Usage.Completion, last.Usage.Total})
		for i, e := range events {
			assert.Equal(t, first.ID, e.ID)
			assert.True(t, strings.HasPrefix(e.ID, "chatcmpl-"))
			assert.Equal(t, "chat.completion.chunk", e.Object)
			assert.Equal(t, modelName, e.Model)
			assert.GreaterOrEqual(t, e.Created, before)
			if i < len(events)-1 {
				assert.Nil(t, e.Usage)
			}
			if i > 0 && i <= want.Tokens {
				assert.Equal(t, want.Pieces[i-1], *e.Choices[0].Delta.Content)
			}
		}
	}
	s.idle()
}

func TestChatWhole(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	want := answers.Chat(modelName, helloChat, 0)
	var r response
	s.ok("/v1/chat/completions", `{`+hello+`}`, &r)
	require.Len(t, r.Choices, 1)
	c := r.Choices[0]
	assert.Equal(t, "assistant", c.Message.Role)
	assert.Equal(t, want.Text, c.Message.Content)
	assert.Equal(t, "stop", *c.Finish)
	assert.Nil(t, c.StopReason)
	assert.Equal(t, "chat.completion", r.Object)
	assert.Equal(t, want.Tokens, r.Usage.Completion)
	assert.Equal(t, r.Usage.Prompt+r.Usage.Completion, r.Usage.Total)

	s.ok("/v1/chat/completions", `{"max_completion_tokens":3,"temperature":1.5,"seed":9,`+hello+`}`, &r)
	assert.Equal(t, answers.Chat(modelName, helloChat, 3).Text, r.Choices[0].Message.Content, "sampling changes nothing")
	assert.Equal(t, "length", *r.Choices[0].Finish)

	parts := `{"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]}`
	s.ok("/v1/chat/completions", parts, &r)
	assert.Equal(t, want.Text, r.Choices[0].Message.Content)
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	req := s.request(t.Context(), http.MethodPost, "/v1/completions", `{"prompt":"a","max_tokens":1}`)
	req.Header.Set("X-Request-Id", "mine")
	resp, err := s.http.Do(req)
	require.NoError(t, err)
	var r response
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&r))
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "cmpl-mine", r.ID)
}

func TestCompletionForms(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	ids, err := json.Marshal(text.Encode("Hello there"))
	require.NoError(t, err)
	a := func(prompt string, p text.Params) answers.Answer { return answers.Generate(modelName, prompt, p) }
	long := text.Params{MaxTokens: 40, IgnoreEOS: true}
	free := a("Hello there", long)
	across := free.Text[len(free.Pieces[0])-2 : len(free.Pieces[0])+2] // the border of the first two tokens
	late := free.Pieces[20] + free.Pieces[21][:2]
	stop := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	tests := []struct {
		name, body string
		want       []answers.Answer
		prefix     []string // echoed prompts
		prompt     int
	}{
		{"plain", `"prompt":"Hello there"`, []answers.Answer{a("Hello there", text.Params{MaxTokens: 16})}, nil, text.Count("Hello there")},
		{"token ids", `"prompt":` + string(ids), []answers.Answer{a("Hello there", text.Params{MaxTokens: 16})}, nil, len(text.Encode("Hello there"))},
		{
			"list of prompts", `"prompt":["Hello there","Why?"],"max_tokens":5`,
			[]answers.Answer{a("Hello there", text.Params{MaxTokens: 5}), a("Why?", text.Params{MaxTokens: 5})}, nil, 0,
		},
		{
			"n per prompt", `"prompt":["x","y"],"max_tokens":5,"n":2`,
			[]answers.Answer{
				a("x", text.Params{MaxTokens: 5}), a("x", text.Params{MaxTokens: 5, Choice: 1}),
				a("y", text.Params{MaxTokens: 5}), a("y", text.Params{MaxTokens: 5, Choice: 1}),
			}, nil, 2,
		},
		{"echo", `"prompt":["x","y"],"max_tokens":2,"echo":true`, []answers.Answer{a("x", text.Params{MaxTokens: 2}), a("y", text.Params{MaxTokens: 2})}, []string{"x", "y"}, 2},
		{"echo alone", `"prompt":"x","max_tokens":0,"echo":true`, []answers.Answer{{Finish: "length"}}, []string{"x"}, 1},
		{"ignore_eos", `"prompt":"Hello there","max_tokens":300,"ignore_eos":true`, []answers.Answer{a("Hello there", text.Params{MaxTokens: 300, IgnoreEOS: true})}, nil, 0},
		{"min_tokens", `"prompt":"Hello there","max_tokens":300,"min_tokens":250`, []answers.Answer{a("Hello there", text.Params{MaxTokens: 300, MinTokens: 250})}, nil, 0},
		{
			"stop across tokens", `"prompt":"Hello there","max_tokens":40,"ignore_eos":true,"stop":` + stop(across),
			[]answers.Answer{a("Hello there", text.Params{MaxTokens: 40, IgnoreEOS: true, Stop: []string{across}})}, nil, 0,
		},
		{
			"stop included", `"prompt":"Hello there","max_tokens":40,"ignore_eos":true,"include_stop_str_in_output":true,"stop":["§",` + stop(late) + `]`,
			[]answers.Answer{a("Hello there", text.Params{MaxTokens: 40, IgnoreEOS: true, Stop: []string{"§", late}, IncludeStop: true})}, nil, 0,
		},
	}
	require.Equal(t, 2, a("Hello there", text.Params{MaxTokens: 40, IgnoreEOS: true, Stop: []string{across}}).Tokens)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := s.in(t)
			var r response
			s.ok("/v1/completions", `{`+tt.body+`}`, &r)
			events := s.stream(t.Context(), "/v1/completions", `{"stream":true,"stream_options":{"continuous_usage_stats":true},`+tt.body+`}`).all()
			texts, reasons, tokens := collect(t, events)
			require.Len(t, r.Choices, len(tt.want))
			total := 0
			for i, want := range tt.want {
				if tt.prefix != nil {
					want.Text = tt.prefix[i] + want.Text
					tokens[i]-- // the event that echoes the prompt
				}
				c := r.Choices[i]
				assert.Equal(t, i, c.Index)
				assert.Equal(t, want.Text, c.Text)
				assert.Equal(t, want.Finish, *c.Finish)
				assert.Equal(t, want.StopReason, orEmpty(c.StopReason))
				assert.Equal(t, want.Text, texts[i], "the stream says the same")
				assert.Equal(t, want.Finish, reasons[i])
				if want.Tokens > 0 {
					assert.Equal(t, want.Tokens, tokens[i])
				}
				total += want.Tokens
			}
			last := events[len(events)-1]
			assert.Equal(t, total, r.Usage.Completion)
			assert.Equal(t, *r.Usage, *last.Usage)
			if tt.prompt > 0 {
				assert.Equal(t, tt.prompt, r.Usage.Prompt)
			}
			for _, e := range events {
				require.NotNil(t, e.Usage, "continuous usage")
			}
		})
	}
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// TestAnotherEngineGoesOn breaks a chat off and lets a second engine finish it.
func TestAnotherEngineGoesOn(t *testing.T) {
	t.Parallel()
	one, two := start(t, nil), start(t, nil)
	want := answers.Chat(modelName, helloChat, 100)
	ctx, cancel := context.WithCancel(t.Context())
	st := one.stream(ctx, "/v1/chat/completions", `{"stream":true,"max_tokens":100,`+hello+`}`)
	begun, tokens := "", 0
	for tokens < want.Tokens/2 {
		e, ok := st.next()
		require.True(t, ok)
		if c := e.Choices[0]; c.Delta.Role == nil {
			begun += *c.Delta.Content
			tokens++
		}
	}
	cancel()
	_ = st.resp.Body.Close()
	sofar, err := json.Marshal(begun)
	require.NoError(t, err)
	var r response
	two.ok("/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":%s}],
		"continue_final_message":true,"add_generation_prompt":false,"max_tokens":%d}`, sofar, 100-tokens), &r)
	assert.Equal(t, want.Text, begun+r.Choices[0].Message.Content)
	assert.Equal(t, want.Finish, *r.Choices[0].Finish)
	assert.Equal(t, want.Tokens, tokens+r.Usage.Completion)
}

// TestManyStreamsInASmallCache is exact under queueing and preemption, and
// leaves nothing behind.
func TestManyStreamsInASmallCache(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) {
		c.MaxNumSeqs, c.NumGPUBlocks, c.BlockSize, c.MaxModelLen = 16, 60, 4, 200
		c.Rates = engine.Rates{Decode: 2000, Prefill: 100000}
	})
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			prompt := fmt.Sprintf("Story number %d", i)
			want := answers.Generate(modelName, prompt, text.Params{MaxTokens: 60, IgnoreEOS: true})
			events := s.stream(t.Context(), "/v1/completions",
				fmt.Sprintf(`{"prompt":%q,"max_tokens":60,"ignore_eos":true,"stream":true}`, prompt)).all()
			texts, _, tokens := collect(t, events)
			assert.Equal(t, want.Text, texts[0])
			assert.Equal(t, 60, tokens[0])
		})
	}
	wg.Wait()
	s.idle()
	m := s.metrics()
	assert.Positive(t, m["vllm:num_preemptions_total"])
	assert.InDelta(t, 60*60, m["vllm:generation_tokens_total"], 0)
	assert.InDelta(t, 60, m["vllm:request_success_total{finished_reason=length}"], 0)
}

func TestClientThatLeavesFreesItsSlot(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.MaxNumSeqs, c.Rates = 1, engine.Rates{Decode: 20} })
	ctx, cancel := context.WithCancel(t.Context())
	st := s.stream(ctx, "/v1/completions", `{"prompt":"x","max_tokens":5000,"ignore_eos":true,"stream":true,"n":3}`)
	_, ok := st.next()
	require.True(t, ok)
	m := s.metrics()
	assert.InDelta(t, 1, m["vllm:num_requests_running"], 0)
	assert.InDelta(t, 2, m["vllm:num_requests_waiting"], 0)
	assert.Positive(t, m["vllm:kv_cache_usage_perc"])
	whole := make(chan error, 1)
	go func() {
		resp, err := s.http.Do(s.request(ctx, http.MethodPost, "/v1/completions", `{"prompt":"x","max_tokens":5000,"ignore_eos":true}`))
		if err == nil {
			err = fmt.Errorf("got an answer: %s", resp.Status)
		}
		whole <- err
	}()
	require.Eventually(t, func() bool { return s.metrics()["vllm:num_requests_waiting"] == 3 }, patience, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-whole, context.Canceled)
	_ = st.resp.Body.Close()
	s.idle()
	assert.InDelta(t, 4, s.metrics()["vllm:request_success_total{finished_reason=abort}"], 0)
}

func TestEmbeddings(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var r struct {
		Object, ID string
		Data       []struct {
			Index     int
			Object    string
			Embedding []float32
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		}
	}
	s.ok("/v1/embeddings", `{"model":"`+modelName+`","input":["Hello there","Why?"]}`, &r)
	require.Len(t, r.Data, 2)
	assert.Equal(t, text.Embed(modelName, "Hello there", text.EmbeddingDim), r.Data[0].Embedding)
	assert.Equal(t, text.Embed(modelName, "Why?", text.EmbeddingDim), r.Data[1].Embedding)
	assert.Equal(t, 1, r.Data[1].Index)
	assert.Equal(t, text.Count("Hello there")+text.Count("Why?"), r.Usage.Prompt)

	var b struct{ Data []struct{ Embedding string } }
	s.ok("/v1/embeddings", `{"input":"Hello there","encoding_format":"base64","dimensions":8}`, &b)
	raw, err := base64.StdEncoding.DecodeString(b.Data[0].Embedding)
	require.NoError(t, err)
	require.Len(t, raw, 32)
	want := text.Embed(modelName, "Hello there", 8)
	for i := range want {
		assert.InDelta(t, want[i], math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])), 0)
	}
	s.idle()
	assert.Zero(t, s.metrics()["vllm:generation_tokens_total"])
}

func TestTokenize(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var r struct {
		Count  int
		Max    int `json:"max_model_len"`
		Tokens []int
	}
	s.ok("/tokenize", `{"prompt":"Hello señor"}`, &r)
	assert.Equal(t, text.Encode("Hello señor"), r.Tokens)
	assert.Equal(t, len(r.Tokens), r.Count)
	assert.Equal(t, 8192, r.Max)
	ids, err := json.Marshal(r.Tokens)
	require.NoError(t, err)
	var back struct{ Prompt string }
	s.ok("/detokenize", `{"tokens":`+string(ids)+`}`, &back)
	assert.Equal(t, "Hello señor", back.Prompt)
	s.ok("/tokenize", `{`+hello+`}`, &r)
	assert.Equal(t, text.Encode(text.Render(helloChat, true, false)), r.Tokens)
}
