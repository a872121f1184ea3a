package pipeline

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

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
	// index has the steps by name, at those where they stand.
	index map[string]int
	at    []hcl.Range
	used  map[int]bool
}

var (
	fileSchema     = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "pipeline", LabelNames: []string{"name"}}}}
	pipelineSchema = schema([]string{"deadline", "output"}, hcl.BlockHeaderSchema{Type: "step", LabelNames: []string{"name"}})
	stepSchema     = schema([]string{"model", "endpoint", "prompt", "messages", "max_tokens", "temperature", "params", "when", "for_each", "parallel", "deadline"})
)

func schema(attrs []string, blocks ...hcl.BlockHeaderSchema) *hcl.BodySchema {
	s := &hcl.BodySchema{Blocks: blocks}
	for _, name := range attrs {
		s.Attributes = append(s.Attributes, hcl.AttributeSchema{Name: name})
	}
	return s
}

func (r *reader) read(src []byte) *Pipeline {
	start := hcl.Range{Start: hcl.InitialPos}
	if len(src) > MaxSource {
		r.Add(start, "file is %d bytes: must be at most %d bytes", len(src), MaxSource)
		return nil
	}
	if at, deep := tooDeep(src, r.File); deep {
		r.Add(at, "nested too deeply: must be at most %d levels of brackets and %d conditions", maxNesting, maxTurns)
		return nil
	}
	file, diags := hclsyntax.ParseConfig(src, r.File, hcl.InitialPos)
	r.Diagnostics("", diags)
	if diags.HasErrors() {
		return nil // what a broken file seems to say is not worth complaining about
	}
	content, diags := file.Body.Content(fileSchema)
	r.Diagnostics("", diags)
	switch n := len(content.Blocks); {
	case n == 0 && !diags.HasErrors():
		r.Add(start, "no pipeline: one block is required, such as pipeline \"support\" { … }")
	case n > 1:
		r.Add(content.Blocks[1].DefRange, "second pipeline block: a file defines one pipeline, the first is on line %d", content.Blocks[0].DefRange.Start.Line)
	}
	if len(content.Blocks) == 0 {
		return nil
	}
	r.pipeline(content.Blocks[0])
	return r.p
}

func (r *reader) pipeline(b *hcl.Block) {
	r.p = &Pipeline{Name: b.Labels[0], Deadline: DefaultDeadline}
	r.index, r.used = map[string]int{}, map[int]bool{}
	path := fmt.Sprintf("pipeline %q", hclfault.Clip(r.p.Name))
	if err := replica.CheckModel(r.p.Name); err != nil {
		r.Add(b.LabelRanges[0], "pipeline: name %v", err)
	}
	content, diags := b.Body.Content(pipelineSchema)
	r.Diagnostics(path+": ", diags)
	r.duration(path, content.Attributes["deadline"], &r.p.Deadline)
	if len(content.Blocks) == 0 && !diags.HasErrors() {
		r.Add(b.DefRange, "%s: no step: at least one block is required, such as step \"classify\" { … }", path)
	}
	if len(content.Blocks) > MaxSteps {
		r.Add(content.Blocks[MaxSteps].DefRange, "%s: %d steps: must be at most %d", path, len(content.Blocks), MaxSteps)
		return
	}
	for i, s := range content.Blocks {
		name := s.Labels[0]
		r.at = append(r.at, s.LabelRanges[0])
		if err := checkStepName(name); err != nil {
			r.Add(s.LabelRanges[0], "%s: step: name %v", path, err)
		} else if first, dup := r.index[name]; dup {
			r.Add(s.LabelRanges[0], "%s: duplicate step %q: first defined on line %d", path, name, r.at[first].Start.Line)
		} else {
			r.index[name] = i
		}
		r.p.Steps = append(r.p.Steps, &Step{Name: name, Endpoint: Chat, Parallel: MaxFanOut})
	}
	bodies := make([]*hcl.BodyContent, len(content.Blocks))
	for i, s := range content.Blocks {
		bodies[i] = r.step(path, i, s)
	}
	// Only now it is known which steps are lists.
	for i, body := range bodies {
		r.expressions(path, i, body, content.Blocks[i])
	}
	r.cycles(path)
	r.output(path, b, content.Attributes["output"])
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
func (r *reader) step(path string, i int, b *hcl.Block) *hcl.BodyContent {
	s := r.p.Steps[i]
	path = stepPath(path, s)
	content, diags := b.Body.Content(stepSchema)
	r.Diagnostics(path+": ", diags)
	a := content.Attributes
	if model := a["model"]; model == nil {
		r.Add(b.DefRange, "%s: model is missing: must be the name of a model", path)
	} else if text, ok := r.constant(path, model, cty.String); ok {
		s.Model = text.AsString()
		if err := replica.CheckModel(s.Model); err != nil {
			r.Add(model.Expr.Range(), "%s: model %v", path, err)
		}
	}
	if v, ok := r.constant(path, a["endpoint"], cty.String); ok {
		if s.Endpoint = Endpoint(v.AsString()); s.Endpoint != Chat && s.Endpoint != Completions {
			r.Add(a["endpoint"].Expr.Range(), "%s: endpoint is %q: must be %q or %q", path, hclfault.Clip(v.AsString()), Chat, Completions)
		}
	}
	r.duration(path, a["deadline"], &s.Deadline)
	s.FanOut = a["for_each"] != nil
	if v, ok := r.constant(path, a["parallel"], cty.Number); ok {
		n, exact := v.AsBigFloat().Int64()
		switch {
		case !s.FanOut:
			r.Add(a["parallel"].NameRange, "%s: parallel is set without for_each: set for_each, or leave parallel out", path)
		case exact != big.Exact || n < 1 || n > MaxFanOut:
			r.Add(a["parallel"].Expr.Range(), "%s: parallel is %s: must be a whole number from 1 to %d", path, hclfault.Show(v), MaxFanOut)
		}
		s.Parallel = int(n)
	}
	return content
}

func stepPath(path string, s *Step) string {
	return fmt.Sprintf("%s: step %q", path, hclfault.Clip(s.Name))
}

// constant is an attribute that names nothing, with ok false where there is none.
func (r *reader) constant(path string, attr *hcl.Attribute, want cty.Type) (cty.Value, bool) {
	if attr == nil {
		return cty.NilVal, false
	}
	v, diags := attr.Expr.Value(nil)
	if diags.HasErrors() {
		if len(attr.Expr.Variables()) > 0 {
			r.Add(attr.Expr.Range(), "%s: %s depends on the request: must be a constant %s", path, attr.Name, want.FriendlyName())
		} else {
			r.Diagnostics(path+": "+attr.Name+": ", diags)
		}
		return v, false
	}
	if v.IsNull() || !v.IsKnown() || v.Type() != want {
		r.Add(attr.Expr.Range(), "%s: %s is %s: must be a %s", path, attr.Name, hclfault.Show(v), want.FriendlyName())
		return v, false
	}
	return v, true
}

func (r *reader) duration(path string, attr *hcl.Attribute, to *time.Duration) {
	v, ok := r.constant(path, attr, cty.String)
	if !ok {
		return
	}
	d, err := time.ParseDuration(v.AsString())
	if err == nil && (d <= 0 || d > MaxDeadline) {
		err = errors.New("out of range")
	}
	if err != nil {
		r.Add(attr.Expr.Range(), "%s: %s is %s: must be a duration above 0s and at most %s, such as \"60s\"", path, attr.Name, hclfault.Show(v), MaxDeadline)
		return
	}
	*to = d
}

// expressions reads what depends on the request.
func (r *reader) expressions(path string, i int, content *hcl.BodyContent, b *hcl.Block) {
	s := r.p.Steps[i]
	path = stepPath(path, s)
	take := func(name string, want wanted, each bool) hcl.Expression {
		attr := content.Attributes[name]
		if attr == nil {
			return nil
		}
		for _, dep := range r.expression(path+": "+name, attr.Expr, want, each && s.FanOut, each) {
			s.deps = addSorted(s.deps, dep)
		}
		return attr.Expr
	}
	s.when = take("when", wantBool, false)
	s.forEach = take("for_each", wantCollection, false)
	s.prompt = take("prompt", wantText, true)
	s.messages = take("messages", wantMessages, true)
	s.maxTokens = take("max_tokens", wantTokens, true)
	s.temperature = take("temperature", wantNumber, true)
	s.params = take("params", wantParams, true)
	for _, d := range s.deps {
		s.After = append(s.After, r.p.Steps[d].Name)
		if d != i {
			r.used[d] = true
		}
	}
	switch {
	case s.prompt == nil && s.messages == nil:
		r.Add(b.DefRange, "%s: prompt is missing: set prompt or messages", path)
	case s.prompt != nil && s.messages != nil:
		r.Add(content.Attributes["messages"].NameRange, "%s: prompt and messages are both set: set one of them", path)
	case s.messages != nil && s.Endpoint == Completions:
		r.Add(content.Attributes["messages"].NameRange, "%s: endpoint %q does not support messages: set prompt", path, Completions)
	}
}

// output reads what the answer is.
func (r *reader) output(path string, b *hcl.Block, attr *hcl.Attribute) {
	if attr == nil {
		r.Add(b.DefRange, "%s: output is missing: must be a step, such as output = step.classify, or a string expression", path)
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
