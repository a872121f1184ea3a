package modelfile

import "remuda/controller/state"

// Parse reads a model file whose content is at hand; filename is for messages and
// for finding job files. With read nil no file can be named. Its error wraps
// ErrInvalid and hclfault.Faults, with every fault.
func Parse(filename string, src []byte, read ReadFile) ([]state.Model, error) {
	return newParser(filename, read, nil).parse(src)
}
