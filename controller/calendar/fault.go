package calendar

import (
	"errors"

	"github.com/hashicorp/hcl/v2"
)

// ErrInvalid is wrapped by every error that says that a calendar is wrong.
var ErrInvalid = errors.New("invalid calendar")

func (p *parser) fault(at hcl.Range, format string, args ...any) { p.faults.Add(at, format, args...) }
