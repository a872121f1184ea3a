package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"remuda/controller/pipeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// models answers every call with "<ID>(<prompt>)", after a second of a bubble's clock.
type models struct {
	takes time.Duration
	// answer, where it is set, answers instead.
	answer func(ctx context.Context, c pipeline.Call) (pipeline.Answer, error)

	mu        sync.Mutex
	calls     []pipeline.Call
	now, most int
	cancelled []string
}

func (m *models) Call(ctx context.Context, c pipeline.Call) (pipeline.Answer, error) {
	m.mu.Lock()
	m.calls = append(m.calls, c)
	m.now++
	m.most = max(m.most, m.now)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.now--
		if ctx.Err() != nil {
			m.cancelled = append(m.cancelled, c.ID())
		}
	}()
	if m.answer != nil {
		return m.answer(ctx, c)
	}
	if m.takes > 0 {
		select {
		case <-time.After(m.takes):
		case <-ctx.Done():
			return pipeline.Answer{}, ctx.Err()
		}
	}
	return said(c, c.ID()+"("+prompt(c)+")"), nil
}

// said is an answer, that was emitted in two pieces where that is wanted.
func said(c pipeline.Call, text string) pipeline.Answer {
	if c.Emit != nil {
		_ = c.Emit([]byte(text[:len(text)/2])) // who emits to a client that is gone sees it by ctx
		_ = c.Emit([]byte(text[len(text)/2:]))
	}
	return pipeline.Answer{Text: text, FinishReason: "stop", Usage: pipeline.Usage{Prompt: 2, Completion: 3}}
}

func prompt(c pipeline.Call) string {
	if c.Endpoint == pipeline.Completions {
		return c.Prompt
	}
	text := string(c.Messages)
	if rest, ok := strings.CutPrefix(text, `[{"content":"`); ok {
		if only, ok := strings.CutSuffix(rest, `","role":"user"}]`); ok {
			return only
		}
	}
	return text
}

func (m *models) called() []string {
	var ids []string
	for _, c := range m.calls {
		ids = append(ids, c.ID())
	}
	slices.Sort(ids)
	return ids
}

func hello() pipeline.Input {
	return pipeline.Input{Text: "hello", Messages: []byte(`[{"role":"system","content":"s"},{"role":"user","content":"hello"}]`), Params: []byte(`{"temperature":0.25,"user":"u"}`)}
}

func TestLinear(t *testing.T) {
	m := &models{}
	p := parse(t, steps("step.b", step("a", `prompt = upper(input.text)`, `max_tokens = 5`, `temperature = input.params.temperature`, `params = { stop = ["x", "y"], seed = 7 }`),
		step("b", `endpoint = "completions"`, `prompt = "then ${step.a.text} in ${step.a.usage.total_tokens} tokens, ${step.a.finish_reason}"`)))
	r, err := p.Run(t.Context(), hello(), m)
	require.NoError(t, err)
	require.Equal(t, "b", r.Step)
	require.Equal(t, "b(then a(HELLO) in 5 tokens, stop)", r.Answer.Text)
	require.Equal(t, pipeline.Usage{Prompt: 4, Completion: 6}, r.Usage)
	require.Equal(t, "m-a", m.calls[0].Model)
	require.False(t, m.calls[0].Output)
	require.True(t, m.calls[1].Output)
	params := map[string]string{}
	for k, v := range m.calls[0].Params {
		params[k] = string(v)
	}
	require.Equal(t, map[string]string{"max_tokens": "5", "temperature": "0.25", "stop": `["x","y"]`, "seed": "7"}, params)
	require.Equal(t, pipeline.Completions, m.calls[1].Endpoint)
}

func TestConditional(t *testing.T) {
	p := parse(t, support)
	for said, want := range map[string]string{"It is BILLING.": "billing", "technical": "tech"} {
		m := &models{answer: func(_ context.Context, c pipeline.Call) (pipeline.Answer, error) {
			if c.Step == "classify" {
				return pipeline.Answer{Text: said}, nil
			}
			return pipeline.Answer{Text: string(c.Messages)}, nil
		}}
		r, err := p.Run(t.Context(), hello(), m)
		require.NoError(t, err)
		require.Equal(t, want, r.Step)
		require.Equal(t, sorted([]string{want, "classify"}), m.called())
		if want == "tech" {
			require.JSONEq(t, `[{"role":"system","content":"s"},{"role":"user","content":"hello"}]`, r.Answer.Text, "the client's own messages")
		}
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }

// TestBranchingOnInput, and what a step that did not run is worth.
func TestBranchingOnInput(t *testing.T) {
	p := parse(t, steps(`step.long != null ? step.long.text : "short: ${step.short.text}, ${length(step.each)} others"`,
		step("long", `when = strlen(input.text) > 100`, `prompt = "l"`), step("short", `when = strlen(input.text) <= 100`, `prompt = "s"`),
		step("each", `when = false`, `for_each = input.messages`, `prompt = each.value.content`)))
	r, err := p.Run(t.Context(), hello(), &models{})
	require.NoError(t, err)
	require.Empty(t, r.Step)
	require.Equal(t, pipeline.Answer{Text: "short: short(s), 0 others", FinishReason: "stop"}, r.Answer)
	in := hello()
	in.Text = strings.Repeat("x", 200)
	r, err = p.Run(t.Context(), in, &models{})
	require.NoError(t, err)
	require.Equal(t, "long(l)", r.Answer.Text)
}

// TestStepsRunAtTheSameTime that do not need each other.
func TestStepsRunAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := parse(t, steps(`"${step.c.text} ${join("+", step.d[*].text)}"`, step("a", `prompt = "1"`), step("b", `prompt = "2"`), step("c", `prompt = "${step.a.text}${step.b.text}"`),
			step("d", `for_each = { x = 1, y = 2, z = 3, w = 4 }`, `prompt = "${each.key}${each.value}"`, "parallel = 2")))
		m := &models{takes: time.Second}
		began := time.Now()
		r, err := p.Run(t.Context(), hello(), m)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, 4, m.most, "a, b and two of d")
		require.Equal(t, "c(a(1)b(2)) d.0(w4)+d.1(x1)+d.2(y2)+d.3(z3)", r.Answer.Text, "in the order of the values")
		require.Equal(t, pipeline.Usage{Prompt: 14, Completion: 21}, r.Usage)
	})
}

// TestAFailureEndsTheOthers at once, and is told with its step.
func TestAFailureEndsTheOthers(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		src, step string
		index     int
	}{
		"sibling": {steps(`"${step.a.text}${step.b.text}"`, step("a", `prompt = "x"`), step("b", `prompt = "x"`)), "b", -1},
		"fan-out": {steps(`step.b[0].text`, step("b", `for_each = ["x", "y", "z"]`, `prompt = each.value`)), "b", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				m := &models{answer: func(ctx context.Context, c pipeline.Call) (pipeline.Answer, error) {
					if c.Step == tt.step && c.Index == tt.index {
						time.Sleep(time.Second)
						return pipeline.Answer{}, broken
					}
					<-ctx.Done()
					return pipeline.Answer{}, ctx.Err()
				}}
				_, err := parse(t, tt.src).Run(t.Context(), hello(), m)
				require.ErrorIs(t, err, broken)
				var of *pipeline.StepError
				require.ErrorAs(t, err, &of)
				require.Equal(t, tt.step, of.Step)
				require.Equal(t, tt.index, of.Index)
				require.Equal(t, time.Second, time.Since(began))
				require.Zero(t, m.now, "all calls have returned")
			})
		})
	}
}

func TestDeadlines(t *testing.T) {
	for name, tt := range map[string]struct {
		src, want string
		after     time.Duration
	}{
		"pipeline": {"pipeline \"p\" {\ndeadline = \"3s\"\n" + step("a", `prompt = "x"`) + "\noutput = step.a\n}", "the deadline has passed: 3s", 3 * time.Second},
		"step":     {steps("step.a", step("a", `prompt = "x"`, `deadline = "2s"`)), `step "a": the deadline has passed: 2s`, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, err := parse(t, tt.src).Run(t.Context(), hello(), &models{takes: time.Hour})
				require.ErrorIs(t, err, pipeline.ErrDeadline)
				require.ErrorContains(t, err, tt.want)
				require.Equal(t, tt.after, time.Since(began))
			})
		})
	}
}

// TestAClientThatLeaves ends every step.
func TestAClientThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := errors.New("the client left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(left) })
		m := &models{takes: time.Hour}
		_, err := parse(t, steps(`"${step.a.text}${step.b[0].text}"`, step("a", `prompt = "x"`), step("b", `for_each = ["x", "y"]`, `prompt = each.value`))).Run(ctx, hello(), m)
		require.ErrorIs(t, err, left)
		require.Equal(t, []string{"a", "b.0", "b.1"}, sorted(m.cancelled))
	})
}

// TestWhatIsEmitted is the answer's own, in order, and of no other candidate.
func TestWhatIsEmitted(t *testing.T) {
	for _, skipped := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			// b runs at once, and whether a does is known only later: what b emits is kept.
			p := parse(t, steps("coalesce(step.a, step.b)", step("ask", `prompt = "q"`), step("a", `when = step.ask.text == "run"`, `prompt = "x"`), step("b", `prompt = "y"`)))
			var out strings.Builder
			in := hello()
			in.Emit = func(b []byte) error { out.Write(b); return nil }
			var before string
			m := &models{answer: func(ctx context.Context, c pipeline.Call) (pipeline.Answer, error) {
				switch c.Step {
				case "ask":
					time.Sleep(time.Minute)
					before = out.String()
					if skipped {
						return pipeline.Answer{Text: "no"}, nil
					}
					return pipeline.Answer{Text: "run"}, nil
				case "b":
					if err := c.Emit([]byte("b1 ")); err != nil {
						return pipeline.Answer{}, err
					}
					select {
					case <-time.After(5 * time.Minute):
					case <-ctx.Done():
						return pipeline.Answer{}, ctx.Err()
					}
					return pipeline.Answer{Text: "b1 b2"}, c.Emit([]byte("b2"))
				}
				return said(c, c.Step), nil
			}}
			r, err := p.Run(t.Context(), in, m)
			require.NoError(t, err)
			require.Empty(t, before, "nothing is told before it is known whose answer it is")
			if skipped {
				require.Equal(t, "b", r.Step)
				require.Equal(t, "b1 b2", out.String())
			} else {
				require.Equal(t, "a", r.Step)
				require.Equal(t, "a", out.String())
				require.Equal(t, []string{"b"}, m.cancelled, "it was ended, as nobody needs it")
			}
		})
	}
}

// TestAnAnswerEndsWhatItDoesNotNeed, also where that would fail later.
func TestAnAnswerEndsWhatItDoesNotNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := parse(t, steps("coalesce(step.a, step.b)", step("a", `prompt = "x"`), step("b", `prompt = "y"`)))
		m := &models{answer: func(ctx context.Context, c pipeline.Call) (pipeline.Answer, error) {
			if c.Step == "a" {
				time.Sleep(time.Second)
				return said(c, "a"), nil
			}
			<-ctx.Done()
			return pipeline.Answer{}, errors.New("it broke as it was ended")
		}}
		r, err := p.Run(t.Context(), hello(), m)
		require.NoError(t, err)
		require.Equal(t, "a", r.Answer.Text)
	})
}

func TestAClientThatTakesNothing(t *testing.T) {
	gone := errors.New("gone")
	in := hello()
	in.Emit = func([]byte) error { return gone }
	m := &models{answer: func(_ context.Context, c pipeline.Call) (pipeline.Answer, error) {
		return pipeline.Answer{}, c.Emit([]byte("x"))
	}}
	_, err := parse(t, steps("step.a", step("a", `prompt = "x"`))).Run(t.Context(), in, m)
	require.ErrorIs(t, err, gone)
	// Also where it is another step that finds out whose answer it is.
	synctest.Test(t, func(t *testing.T) {
		m := &models{answer: func(ctx context.Context, c pipeline.Call) (pipeline.Answer, error) {
			if c.Step == "b" {
				if err := c.Emit([]byte("kept")); err != nil {
					return pipeline.Answer{}, err
				}
				<-ctx.Done()
				return pipeline.Answer{}, ctx.Err()
			}
			time.Sleep(time.Second)
			return pipeline.Answer{Text: "no"}, nil
		}}
		p := parse(t, steps("coalesce(step.a, step.b)", step("ask", `prompt = "q"`), step("a", `when = step.ask.text == "run"`, `prompt = "x"`), step("b", `prompt = "y"`)))
		_, err := p.Run(t.Context(), in, m)
		require.ErrorIs(t, err, gone)
	})
}

func TestExpressionsWithoutAValue(t *testing.T) {
	ok := `prompt = "x"`
	for name, tt := range map[string]struct {
		src, want string
		is        error
	}{
		"a step that did not run": {steps("step.b", step("a", ok, "when = false"), step("b", "prompt = step.a.text")), `step "b": prompt: the expression has no value for this request: line 9, column 16: attempt to get attribute from null value`, pipeline.ErrExpression},
		"a missing field":         {steps("step.a", step("a", ok, "max_tokens = input.params.none")), `line 5, column 26: unsupported attribute`, pipeline.ErrExpression},
		"a wrong type":            {steps("step.a", step("a", ok, "max_tokens = input.params.user")), `max_tokens is "u": must be a whole number above 0`, pipeline.ErrExpression},
		"too many values":         {steps("step.a[0]", step("a", ok, `for_each = split("", join("", [for i in split("", input.text) : "${i}0123456789abcdef"]))`)), `for_each has 85 values: must be at most 64`, pipeline.ErrExpression},
		"no output":               {steps("coalesce(step.a, step.b)", step("a", ok, "when = false"), step("b", ok, "when = false")), `the "when" of each of its steps ["a" "b"] was false`, pipeline.ErrNoOutput},
		"a huge number":           {steps("step.a", step("a", `prompt = "${jsondecode("1e999999999")}"`)), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.is == nil {
				_, err := pipeline.Parse("p.hcl", []byte(tt.src))
				require.ErrorContains(t, err, `"1e999999999" is not a supported number.`)
				return
			}
			m := &models{}
			_, err := parse(t, tt.src).Run(t.Context(), hello(), m)
			require.ErrorIs(t, err, tt.is)
			require.ErrorContains(t, err, tt.want)
			require.Empty(t, m.calls)
		})
	}
}

func TestInputThatCannotBeUsed(t *testing.T) {
	p := parse(t, steps("step.a", step("a", "messages = input.messages")))
	for name, messages := range map[string]string{"no JSON": "[", "more": "[] []", "deep": strings.Repeat("[", 100) + strings.Repeat("]", 100), "numbers": "[1e999999999]"} {
		in := hello()
		in.Messages = []byte(messages)
		_, err := p.Run(t.Context(), in, &models{})
		require.ErrorIs(t, err, pipeline.ErrInput, name)
	}
	in := hello()
	in.Params = []byte("{") // nobody looks at it
	_, err := p.Run(t.Context(), in, &models{})
	require.NoError(t, err)
}

// TestRandomGraphs: each step runs at most once and after what it needs, and the answer is
// that of running the steps one after the other.
func TestRandomGraphs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			n := rapid.IntRange(1, 8).Draw(rt, "steps")
			var blocks []string
			text := make([]string, n)
			used := make([]bool, n)
			for i := range n {
				expr, want := []string{`"p"`}, "p"
				for d := range i {
					if rapid.IntRange(0, 2).Draw(rt, "edge") == 0 {
						used[d] = true
						expr = append(expr, fmt.Sprintf("(step.s%d != null ? step.s%d.text : \"-\")", d, d))
						want += text[d]
					}
				}
				lines := []string{"endpoint = \"completions\"", "prompt = join(\"\", [" + strings.Join(expr, ", ") + "])"}
				if text[i] = fmt.Sprintf("s%d(%s)", i, want); rapid.IntRange(0, 3).Draw(rt, "skip") == 0 {
					text[i] = "-"
					lines = append(lines, fmt.Sprintf("when = strlen(input.text) == %d", i+100))
				}
				blocks = append(blocks, step(fmt.Sprint("s", i), lines...))
			}
			var out []string
			want := ""
			for i := range n {
				if !used[i] {
					out = append(out, fmt.Sprintf("(step.s%d != null ? step.s%d.text : \"-\")", i, i))
					want += text[i]
				}
			}
			blocks = rapid.Permutation(blocks).Draw(rt, "order")
			takes := map[string]time.Duration{}
			for i := range n {
				takes[fmt.Sprint("s", i)] = time.Duration(rapid.IntRange(1, 5).Draw(rt, "takes")) * time.Second
			}
			m := &models{answer: func(_ context.Context, c pipeline.Call) (pipeline.Answer, error) {
				time.Sleep(takes[c.Step])
				return said(c, c.Step+"("+c.Prompt+")"), nil
			}}
			p := parse(rt, steps(`join("", [`+strings.Join(out, ", ")+`])`, blocks...))
			r, err := p.Run(context.Background(), hello(), m)
			require.NoError(rt, err)
			require.Equal(rt, want, r.Answer.Text)
			require.Len(rt, slices.Compact(m.called()), len(m.calls), "no step runs twice")
			require.Equal(rt, int64(3*len(m.calls)), r.Usage.Completion)
		})
	})
}
