package pipeline_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/pipeline"
	"remuda/internal/hclfault"
)

// support is the example of the package's documentation, with a simpler output.
const support = `pipeline "support" {
  deadline = "60s"

  step "classify" {
    model      = "small"
    prompt     = "Billing or technical? ${input.text}"
    max_tokens = 5
  }
  step "billing" {
    model  = "billing-llm"
    when   = strcontains(lower(step.classify.text), "billing")
    prompt = input.text
  }
  step "tech" {
    model    = "tech-llm"
    when     = !strcontains(lower(step.classify.text), "billing")
    messages = input.messages
  }
  output = coalesce(step.billing, step.tech)
}
`

func parse(t require.TestingT, src string) *pipeline.Pipeline {
	p, err := pipeline.Parse("p.hcl", []byte(src))
	require.NoError(t, err)
	return p
}

// steps is a pipeline with these steps and this output.
func steps(output string, blocks ...string) string {
	return "pipeline \"p\" {\n" + strings.Join(blocks, "\n") + "\noutput = " + output + "\n}\n"
}

// step is a step with these lines.
func step(name string, lines ...string) string {
	return "step \"" + name + "\" {\nmodel = \"m-" + name + "\"\n" + strings.Join(lines, "\n") + "\n}"
}

func TestParse(t *testing.T) {
	p := parse(t, support)
	require.Equal(t, "support", p.Name)
	require.Equal(t, time.Minute, p.Deadline)
	require.Equal(t, []string{"billing-llm", "small", "tech-llm"}, p.Models())
	require.Equal(t, []string{"billing", "tech"}, p.Outputs())
	require.Equal(t, []string{"classify"}, p.Steps[2].After)
	require.Equal(t, pipeline.Chat, p.Steps[0].Endpoint)
	require.False(t, p.Steps[0].FanOut)

	p = parse(t, steps(`join("\n", step.b[*].text)`, step("a", `endpoint = "completions"`, `prompt = "x"`, `deadline = "2s"`),
		step("b", `for_each = split(",", step["a"].text)`, `prompt = "${each.key} ${each.value}"`, "parallel = 2")))
	require.Equal(t, pipeline.DefaultDeadline, p.Deadline)
	require.Empty(t, p.Outputs())
	require.Equal(t, pipeline.Completions, p.Steps[0].Endpoint)
	require.Equal(t, 2*time.Second, p.Steps[0].Deadline)
	require.Equal(t, 2, p.Steps[1].Parallel)
	require.Equal(t, []string{"a"}, p.Steps[1].After)

	require.Equal(t, []string{"a"}, parse(t, steps("(step.a)", step("a", `prompt = "x"`))).Outputs())
	require.Empty(t, parse(t, steps("step.a.text", step("a", `prompt = "x"`))).Outputs(), "a text goes through an expression")
}

func TestFaults(t *testing.T) {
	ok := `prompt = "x"`
	for name, tt := range map[string]struct {
		src  string
		want []string
	}{
		"nothing":            {"", []string{"p.hcl:1:1: no pipeline"}},
		"not HCL":            {"pipeline \"p\" {\n  step {{\n", []string{"p.hcl:2:"}},
		"too long":           {strings.Repeat("#", pipeline.MaxSource+1), []string{"65537 bytes"}},
		"another block":      {"model \"m\" {}\n", []string{`p.hcl:1:1: unsupported block type`}},
		"two":                {steps("step.a", step("a", ok)) + steps("step.a", step("a", ok)), []string{"p.hcl:8:1: second pipeline block: a file defines one pipeline, the first is on line 1"}},
		"bad names":          {"pipeline \" \" {\nstep \"1\" {\nmodel = \"m\"\nprompt = \"x\"\n}\noutput = \"\"\n}", []string{`p.hcl:1:10: pipeline: name is " "`, `p.hcl:2:6: pipeline " ": step: name is "1"`}},
		"no steps":           {`pipeline "p" { output = "x" }`, []string{`pipeline "p": no step`}},
		"no output":          {"pipeline \"p\" {\n" + step("a", ok) + "\n}", []string{`p.hcl:1:1: pipeline "p": output is missing`}},
		"bad deadlines":      {"pipeline \"p\" {\ndeadline = \"soon\"\n" + step("a", ok, `deadline = "-1s"`) + "\noutput = step.a\n}", []string{`p.hcl:2:12: pipeline "p": deadline is "soon"`, `step "a": deadline is "-1s": must be a duration above 0s and at most 24h0m0s, such as "60s"`}},
		"names twice":        {steps("step.a", step("a", ok), step("a", ok)), []string{`p.hcl:6:6: pipeline "p": duplicate step "a": first defined on line 2`}},
		"unused":             {steps("step.a", step("a", ok), step("b", ok)), []string{`step "b" is unused`}},
		"no model":           {steps("step.a", "step \"a\" {\nprompt = \"x\"\n}"), []string{`step "a": model is missing`}},
		"a bad model":        {steps("step.a", "step \"a\" {\nmodel = \"m m\"\nprompt = \"x\"\n}"), []string{`step "a": model is "m m"`}},
		"a model that moves": {steps("step.a", "step \"a\" {\nmodel = input.text\nprompt = \"x\"\n}"), []string{`model is not a constant: must be the name of a model`}},
		"no prompt":          {steps("step.a", step("a")), []string{`p.hcl:2:1: pipeline "p": step "a": prompt is missing`}},
		"both":               {steps("step.a", step("a", ok, "messages = input.messages")), []string{`step "a": prompt and messages are both set`}},
		"an endpoint":        {steps("step.a", step("a", ok, `endpoint = "embeddings"`)), []string{`endpoint is "embeddings": must be "chat" or "completions"`}},
		"messages there":     {steps("step.a", step("a", "messages = input.messages", `endpoint = "completions"`)), []string{`step "a": endpoint "completions" does not support messages`}},
		"unknown attribute":  {steps("step.a", step("a", ok, "retries = 3")), []string{`p.hcl:5:1: unsupported argument`}},
		"no such step":       {steps("step.b", step("a", `prompt = step.c.text`)), []string{`step "a": prompt: unknown step "c": must be one of a`, `output: unknown step "b"`}},
		"all steps":          {steps("step", step("a", ok)), []string{`output: refers to all steps: must be one step, such as step.a`}},
		"a strange name":     {steps("nodes.a", step("a", ok)), []string{`output: unknown name "nodes": must be input, step or each`}},
		"no such field":      {steps("step.a.txt", step("a", `prompt = input.txt`)), []string{`p.hcl:4:15: pipeline "p": step "a": prompt: unsupported attribute`, `output: unsupported attribute`}},
		"no such function":   {steps(`file("/etc/passwd")`, step("a", ok)), []string{`output: call to unknown function`}},
		"itself":             {steps("step.a", step("a", `prompt = step.a.text`)), []string{`step "a": dependency cycle: a needs a`}},
		"a cycle":            {steps("step.a", step("a", `prompt = step.b.text`), step("b", `prompt = step.c.text`), step("c", ok, `when = step.a.text == ""`)), []string{`step "c": dependency cycle: a needs b needs c needs a`}},
		"each without":       {steps("step.a", step("a", `prompt = each.value`)), []string{`pipeline "p": step "a": prompt: each is used without for_each`}},
		"each in when":       {steps("step.a[0]", step("a", `prompt = each.value`, `for_each = ["x"]`, `when = each.value == "x"`)), []string{"when: each cannot be used here: only in the request of a step with for_each"}},
		"too many values":    {steps("step.a[0]", step("a", ok, "for_each = ["+strings.Repeat("1,", 65)+"]")), []string{"for_each has 65 values: must be at most 64"}},
		"parallel alone":     {steps("step.a", step("a", ok, "parallel = 2")), []string{"parallel is set without for_each"}},
		"parallel":           {steps("step.a[0]", step("a", ok, `for_each = ["x"]`, "parallel = 65")), []string{"parallel is 65: must be a whole number from 1 to 64"}},
		"types": {
			steps("step.a", step("a", `prompt = ["x"]`, "when = {}", `max_tokens = 0`, "temperature = []", "params = 1")),
			[]string{"prompt is a tuple: must be a string", "when is a object: must be true or false", "max_tokens is 0: must be a whole number above 0", "temperature is a tuple: must be a number", "params is a number: must be an object"},
		},
		"params":        {steps("step.a", step("a", ok, `params = { n = 2 }`)), []string{`params has the field "n", which is not allowed: use for_each`}},
		"messages":      {steps("step.a", step("a", `messages = [{ content = "x" }]`)), []string{"messages element 0 has no role"}},
		"no messages":   {steps("step.a", step("a", `messages = []`)), []string{"messages is empty"}},
		"a list is out": {steps("step.a", step("a", ok, `for_each = ["x"]`)), []string{"output is a step with for_each, which is a list of answers: must be a step or a string"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := pipeline.Parse("p.hcl", []byte(tt.src))
			require.ErrorIs(t, err, pipeline.ErrInvalid)
			require.Nil(t, p)
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
			require.Len(t, strings.Split(err.Error(), "\n"), len(tt.want), err.Error())
		})
	}
	var many []string
	for range pipeline.MaxSteps + 1 {
		many = append(many, step("a", ok))
	}
	_, err := pipeline.Parse("p.hcl", []byte(steps("step.a", many...)))
	require.ErrorContains(t, err, "65 steps: must be at most 64")
}

// deep files would end the program in HCL's parser.
var deep = []string{
	strings.Repeat("(", 60000),
	"pipeline \"p\" {\noutput = " + strings.Repeat("[", 60000),
	"pipeline \"p\" {\noutput = " + strings.Repeat("!", 60000) + "true\n}",
	"pipeline \"p\" {\noutput = " + strings.Repeat("-", 60000) + "1\n}",
	"pipeline \"p\" {\noutput = " + strings.Repeat("0?0:", 15000) + "1\n}",
	"pipeline \"p\" {\noutput = \"" + strings.Repeat("%{if true}", 6000),
	"pipeline \"p\" {\noutput = " + strings.Repeat("\"${", 15000),
	strings.Repeat("a {\n", 15000),
}

func TestDeepFiles(t *testing.T) {
	for _, src := range deep {
		_, err := pipeline.Parse("p.hcl", []byte(src))
		require.ErrorContains(t, err, ": nested too deeply: must be at most 200 levels of brackets")
	}
	// A long expression that does not nest is slow at worst.
	_, err := pipeline.Parse("p.hcl", []byte(steps("\"${1"+strings.Repeat("+1", 20000)+"}\"", step("a", `prompt = "x"`))))
	require.ErrorContains(t, err, `step "a" is unused`)
}

// FuzzPipeline: whatever is read does not panic, has faults with lines, or can be run.
func FuzzPipeline(f *testing.F) {
	f.Add(support)
	f.Add(steps(`"${step.a.text} ${join(",", step.b[*].text)}"`, step("a", `prompt = "x"`, `when = input.params.x > 1`), step("b", `for_each = [for m in input.messages : m.content]`, `prompt = each.value`)))
	f.Add(steps(`try(jsondecode(step.a.text).x, "none")`, step("a", `messages = concat([{ role = "system", content = "be short" }], input.messages)`, `params = { stop = ["x"] }`, `max_tokens = 3`, `temperature = 0.5`)))
	f.Add(steps("coalesce(step.a, step.a)", step("a", `prompt = "x"`)))
	for _, nested := range deep {
		f.Add(nested)
	}
	f.Fuzz(func(t *testing.T, src string) {
		p, err := pipeline.Parse("p.hcl", []byte(src))
		if err != nil {
			var faults hclfault.Faults
			require.ErrorAs(t, err, &faults)
			require.NotEmpty(t, faults)
			for _, f := range faults {
				require.Positive(t, f.Line)
				require.NotEmpty(t, f.Text)
			}
			return
		}
		in := pipeline.Input{Text: "hello", Messages: []byte(`[{"role":"user","content":"hello"}]`), Params: []byte(`{"temperature":1}`)}
		result, err := p.Run(t.Context(), in, &models{})
		if err == nil && len(p.Outputs()) > 0 {
			require.Contains(t, p.Outputs(), result.Step)
		}
	})
}
