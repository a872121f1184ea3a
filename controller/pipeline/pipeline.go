package pipeline

import (
	"slices"
	"time"

	"github.com/hashicorp/hcl/v2"
)

// Bounds of a pipeline. They are there to catch mistakes, and to bound what one request may
// cause.
const (
	// MaxSource is the longest file, in bytes.
	MaxSource = 64 << 10
	// MaxSteps is how many steps a pipeline may have.
	MaxSteps = 64
	// MaxFanOut is how many values for_each may have.
	MaxFanOut = 64
	// MaxPrompt is the longest prompt, or messages, of a step, in bytes of JSON.
	MaxPrompt = 16 << 20
	// MaxHeld is how many bytes of an answer are kept until it is known whether they are the
	// pipeline's.
	MaxHeld = 16 << 20

	// DefaultDeadline is that of a pipeline that does not say.
	DefaultDeadline = 10 * time.Minute
	// MaxDeadline is the longest deadline.
	MaxDeadline = 24 * time.Hour
)

// Endpoint is the API by which a step calls its model.
type Endpoint string

// The endpoints.
const (
	Chat        Endpoint = "chat"        // /v1/chat/completions; a prompt is one message of the user
	Completions Endpoint = "completions" // /v1/completions; a prompt as it is
)

// Pipeline is a pipeline that was read. It never changes, and may run many times at once.
type Pipeline struct {
	Name string
	// Deadline is how long one request may take.
	Deadline time.Duration
	// Steps in the order of the file.
	Steps []*Step

	output hcl.Expression // a step, coalesce() of several, or an expression that is a string
	// outputDeps are the steps that output names.
	outputDeps []int
	// candidates are the steps of which the first one that runs is the output, in their
	// order; none where output is computed.
	candidates []int
	// uses says which parts of the input the expressions look at.
	uses struct{ messages, params bool }
}

// Step is one call of a model, or of for_each.
type Step struct {
	Name string
	// Model is the name of the model that it calls.
	Model string
	// Endpoint is the API by which it calls the model.
	Endpoint Endpoint
	// After are the names of the steps that it needs, in the order of the file.
	After []string
	// FanOut: it has for_each.
	FanOut bool
	// Parallel is how many calls of a for_each run at once.
	Parallel int
	// Deadline of each call, 0: the pipeline's only.
	Deadline time.Duration

	// Expressions, nil where they were left out.

	when        hcl.Expression // whether the step runs: true or false
	forEach     hcl.Expression // a list or a map: the step runs once for each of its values
	prompt      hcl.Expression // a text for the model, in place of messages
	messages    hcl.Expression // the messages of a chat, in place of a prompt
	maxTokens   hcl.Expression // how many tokens the answer may have
	temperature hcl.Expression // the temperature of the sampling
	params      hcl.Expression // an object with further fields of the request to the model
	// deps are the steps of After.
	deps []int
}

// Models are the names of the models that the steps call, each once, sorted.
func (p *Pipeline) Models() []string {
	var names []string
	for _, s := range p.Steps {
		names = append(names, s.Model)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Outputs are the steps whose answer may be the pipeline's own, in the order in which they
// are asked; none where the output is computed.
func (p *Pipeline) Outputs() []string {
	var names []string
	for _, i := range p.candidates {
		names = append(names, p.Steps[i].Name)
	}
	return names
}
