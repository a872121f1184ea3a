package gguf

import "io"

// Encode writes the tiny model to w.
func Encode(w io.Writer, o Options) error {
	if err := o.validate(); err != nil {
		return err
	}
	return encode(w, o)
}
