package pipeline

import (
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"remuda/internal/hclfault"
	"remuda/internal/replica"
)

// Parse reads a file with one pipeline; filename is for messages. Its error wraps ErrInvalid and is hclfault.Faults, with
// every fault that the file has. What it returns has been checked as far as that is possible
// without a request: every name is there, no step waits for itself, and every expression has
// the type that its place wants, unless its type depends on the request.
func Parse(filename string, src []byte) (*Pipeline, error) {
	r := &reader{Collector: hclfault.Collector{File: filename}}
	p := r.read(src)
	if err := r.Err(ErrInvalid); err != nil {
		return nil, err
	}
	return p, nil
}

type reader struct {
	hclfault.Collector
	p *Pipeline
	// broken: HCL found a fault, such as a misspelt name, which may be what seems to be missing.
	broken bool
	// index has the steps by name, at those where they stand.
	index map[string]int
	at    []hcl.Range
	used  map[int]bool
}

// file is a pipeline file as it is written.
type file struct {
	Pipelines []pipelineBlock `hcl:"pipeline,block"`
}

type pipelineBlock struct {
	Name     string         `hcl:"name,label"`
	NameAt   hcl.Range      `hcl:"name,label_range"`
	At       hcl.Range      `hcl:",def_range"`
	Deadline *hcl.Attribute `hcl:"deadline,optional"`
	Output   *hcl.Attribute `hcl:"output,optional"`
	Steps    []stepBlock    `hcl:"step,block"`
}

type stepBlock struct {
	Name        string         `hcl:"name,label"`
	NameAt      hcl.Range      `hcl:"name,label_range"`
	At          hcl.Range      `hcl:",def_range"`
	Model       *hcl.Attribute `hcl:"model,optional"`
	Endpoint    *hcl.Attribute `hcl:"endpoint,optional"`
	Prompt      *hcl.Attribute `hcl:"prompt,optional"`
	Messages    *hcl.Attribute `hcl:"messages,optional"`
	MaxTokens   *hcl.Attribute `hcl:"max_tokens,optional"`
	Temperature *hcl.Attribute `hcl:"temperature,optional"`
	Params      *hcl.Attribute `hcl:"params,optional"`
	When        *hcl.Attribute `hcl:"when,optional"`
	ForEach     *hcl.Attribute `hcl:"for_each,optional"`
	Parallel    *hcl.Attribute `hcl:"parallel,optional"`
	Deadline    *hcl.Attribute `hcl:"deadline,optional"`
}

func (r *reader) read(src []byte) *Pipeline {
	start := hcl.Range{Start: hcl.InitialPos}
	body := r.Body(src, MaxSource)
	if body == nil {
		return nil
	}
	var f file
	diags := gohcl.DecodeBody(body, nil, &f)
	r.Diagnostics("", diags)
	r.broken = diags.HasErrors()
	switch n := len(f.Pipelines); {
	case n == 0 && !r.broken:
		r.Add(start, "no pipeline: one block is required, such as pipeline \"support\" { … }")
	case n > 1:
		r.Add(f.Pipelines[1].At, "second pipeline block: a file defines one pipeline, the first is on line %d", f.Pipelines[0].At.Start.Line)
	}
	if len(f.Pipelines) == 0 {
		return nil
	}
	r.pipeline(f.Pipelines[0])
	return r.p
}

func (r *reader) pipeline(b pipelineBlock) {
	r.p = &Pipeline{Name: b.Name, Deadline: DefaultDeadline}
	r.index, r.used = map[string]int{}, map[int]bool{}
	path := fmt.Sprintf("pipeline %q", hclfault.Clip(r.p.Name))
	if err := replica.CheckModel(r.p.Name); err != nil {
		r.Add(b.NameAt, "pipeline: name %v", err)
	}
	r.duration(path, b.Deadline, &r.p.Deadline)
	if len(b.Steps) == 0 && !r.broken {
		r.Add(b.At, "%s: no step: at least one block is required, such as step \"classify\" { … }", path)
	}
	if len(b.Steps) > MaxSteps {
		r.Add(b.Steps[MaxSteps].At, "%s: %d steps: must be at most %d", path, len(b.Steps), MaxSteps)
		return
	}
	for i, s := range b.Steps {
		r.at = append(r.at, s.NameAt)
		if err := checkStepName(s.Name); err != nil {
			r.Add(s.NameAt, "%s: step: name %v", path, err)
		} else if first, dup := r.index[s.Name]; dup {
			r.Add(s.NameAt, "%s: duplicate step %q: first defined on line %d", path, s.Name, r.at[first].Start.Line)
		} else {
			r.index[s.Name] = i
		}
		r.p.Steps = append(r.p.Steps, &Step{Name: s.Name, Endpoint: Chat, Parallel: MaxFanOut})
	}
	for i, s := range b.Steps {
		r.step(path, r.p.Steps[i], s)
	}
	// Only now it is known which steps are lists.
	for i, s := range b.Steps {
		r.expressions(path, i, s)
	}
	r.cycles(path)
	r.output(path, b)
	if r.Err(ErrInvalid) != nil {
		return // what would use a step may be what is wrong
	}
	for i, s := range r.p.Steps {
		if !r.used[i] {
			r.Add(r.at[i], "%s: step %q is unused: use it in output or in another step, or remove it", path, hclfault.Clip(s.Name))
		}
	}
}

// step reads what is the same for every request.
func (r *reader) step(path string, s *Step, b stepBlock) {
	path = stepPath(path, s)
	if b.Model == nil {
		r.Add(b.At, "%s: model is missing: must be the name of a model", path)
	} else if r.Read(path+": ", b.Model, &s.Model, "the name of a model") {
		if err := replica.CheckModel(s.Model); err != nil {
			r.Add(b.Model.Expr.Range(), "%s: model %v", path, err)
		}
	}
	endpoints := fmt.Sprintf("%q or %q", Chat, Completions)
	if r.Read(path+": ", b.Endpoint, &s.Endpoint, endpoints) && s.Endpoint != Chat && s.Endpoint != Completions {
		r.Add(b.Endpoint.Expr.Range(), "%s: endpoint is %q: must be %s", path, hclfault.Clip(string(s.Endpoint)), endpoints)
	}
	r.duration(path, b.Deadline, &s.Deadline)
	s.FanOut = b.ForEach != nil
	parallel := fmt.Sprintf("a whole number from 1 to %d", MaxFanOut)
	if r.Read(path+": ", b.Parallel, &s.Parallel, parallel) {
		switch n := s.Parallel; {
		case !s.FanOut:
			r.Add(b.Parallel.NameRange, "%s: parallel is set without for_each: set for_each, or leave parallel out", path)
		case n < 1 || n > MaxFanOut:
			r.Add(b.Parallel.Expr.Range(), "%s: parallel is %d: must be %s", path, n, parallel)
		}
	}
}

func stepPath(path string, s *Step) string {
	return fmt.Sprintf("%s: step %q", path, hclfault.Clip(s.Name))
}

func (r *reader) duration(path string, attr *hcl.Attribute, to *time.Duration) {
	want := fmt.Sprintf("a duration above 0s and at most %s, such as \"60s\"", MaxDeadline)
	var text string
	if !r.Read(path+": ", attr, &text, want) {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > MaxDeadline {
		r.Add(attr.Expr.Range(), "%s: %s is %q: must be %s", path, attr.Name, hclfault.Clip(text), want)
		return
	}
	*to = d
}

// expressions reads what depends on the request.
func (r *reader) expressions(path string, i int, b stepBlock) {
	s := r.p.Steps[i]
	path = stepPath(path, s)
	take := func(attr *hcl.Attribute, want wanted, each bool) hcl.Expression {
		if attr == nil {
			return nil
		}
		for _, dep := range r.expression(path+": "+attr.Name, attr.Expr, want, each && s.FanOut, each) {
			s.deps = addSorted(s.deps, dep)
		}
		return attr.Expr
	}
	s.when = take(b.When, wantBool, false)
	s.forEach = take(b.ForEach, wantCollection, false)
	s.prompt = take(b.Prompt, wantText, true)
	s.messages = take(b.Messages, wantMessages, true)
	s.maxTokens = take(b.MaxTokens, wantTokens, true)
	s.temperature = take(b.Temperature, wantNumber, true)
	s.params = take(b.Params, wantParams, true)
	for _, d := range s.deps {
		s.After = append(s.After, r.p.Steps[d].Name)
		if d != i {
			r.used[d] = true
		}
	}
	switch {
	case s.prompt == nil && s.messages == nil:
		r.Add(b.At, "%s: prompt is missing: set prompt or messages", path)
	case s.prompt != nil && s.messages != nil:
		r.Add(b.Messages.NameRange, "%s: prompt and messages are both set: set one of them", path)
	case s.messages != nil && s.Endpoint == Completions:
		r.Add(b.Messages.NameRange, "%s: endpoint %q does not support messages: set prompt", path, Completions)
	}
}

// output reads what the answer is.
func (r *reader) output(path string, b pipelineBlock) {
	attr := b.Output
	if attr == nil {
		r.Add(b.At, "%s: output is missing: must be a step, such as output = step.classify, or a string expression", path)
		return
	}
	r.p.output = attr.Expr
	r.p.outputDeps = r.expression(path+": output", attr.Expr, wantOutput, false, false)
	for _, d := range r.p.outputDeps {
		r.used[d] = true
	}
	r.p.candidates = r.candidates(attr.Expr)
}

// candidates are the steps of an output that is one step, or coalesce of several; nil of
// any other.
func (r *reader) candidates(expr hcl.Expression) []int {
	switch e := expr.(type) {
	case *hclsyntax.ParenthesesExpr:
		return r.candidates(e.Expression)
	case *hclsyntax.ScopeTraversalExpr:
		if i, ok := r.stepOf(e.Traversal); ok && len(e.Traversal) == 2 && !r.p.Steps[i].FanOut {
			return []int{i}
		}
	case *hclsyntax.FunctionCallExpr:
		if e.Name != "coalesce" || e.ExpandFinal {
			return nil
		}
		var all []int
		for _, arg := range e.Args {
			one := r.candidates(arg)
			if len(one) == 0 {
				return nil
			}
			all = append(all, one...)
		}
		return all
	}
	return nil
}

// cycles finds steps that wait for themselves.
func (r *reader) cycles(path string) {
	const white, grey, black = 0, 1, 2
	colour := make([]int, len(r.p.Steps))
	var way []int
	var visit func(i int)
	visit = func(i int) {
		colour[i] = grey
		way = append(way, i)
		for _, d := range r.p.Steps[i].deps {
			switch colour[d] {
			case white:
				visit(d)
			case grey:
				var names []string
				for k := len(way) - 1; ; k-- {
					names = append([]string{r.p.Steps[way[k]].Name}, names...)
					if way[k] == d {
						break
					}
				}
				names = append(names, r.p.Steps[d].Name)
				r.Add(r.at[i], "%s: dependency cycle: %s", stepPath(path, r.p.Steps[i]), strings.Join(names, " needs "))
			}
		}
		way = way[:len(way)-1]
		colour[i] = black
	}
	for i := range r.p.Steps {
		if colour[i] == white {
			visit(i)
		}
	}
}

func addSorted(list []int, n int) []int {
	for i, have := range list {
		if have == n {
			return list
		}
		if have > n {
			return append(list[:i:i], append([]int{n}, list[i:]...)...)
		}
	}
	return append(list, n)
}
