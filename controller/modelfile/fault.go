package modelfile

import (
	"errors"

	"github.com/hashicorp/hcl/v2"
)

// ErrInvalid is wrapped by every error that says that a model file is wrong.
var ErrInvalid = errors.New("invalid model file")

func (p *parser) add(at hcl.Range, format string, args ...any) { p.faults.Add(at, format, args...) }

func (p *parser) diagnostics(where string, diags hcl.Diagnostics) {
	p.faults.Diagnostics(where, diags)
}
