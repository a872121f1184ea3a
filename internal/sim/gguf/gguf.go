// Package gguf writes a tiny language model in the GGUF format, and tells a GGUF file
// from another.
//
// Write makes a real model of the llama architecture, about 460 KB large, that
// any llama.cpp based engine loads in a fraction of a second on any CPU. Its
// weights are random, so its text means nothing, but they are shaped so that
// it behaves well in tests: it emits only printable ASCII, it never ends by
// itself (a request ends at its token limit), and it does not fall into
// repeating one token. The same Options give the same bytes on every machine.
//
// The format is described in ggml's docs/gguf.md; this package writes version 3.
package gguf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unicode"
	"unicode/utf8"
)

// Options choose the model that Write makes.
type Options struct {
	// Name goes into the file as general.name. Default "remuda-tiny".
	Name string
	// Seed of the random weights. Equal seeds and names give equal bytes.
	Seed uint64
}

// DefaultName is the model name in the file when Options names none.
const DefaultName = "remuda-tiny"

// maxName bounds general.name; engines print it in one log line.
const maxName = 128

func (o *Options) validate() error {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if len(o.Name) > maxName {
		return fmt.Errorf("model name has %d bytes: must be at most %d", len(o.Name), maxName)
	}
	if !utf8.ValidString(o.Name) {
		return fmt.Errorf("model name %q is not valid UTF-8", o.Name)
	}
	for _, r := range o.Name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("model name %q has the character %q: all must be printable", o.Name, r)
		}
	}
	return nil
}

// Write makes the tiny model at path. The file appears under its name only
// when it is complete and on disk; a file that was there is replaced. Its
// directory must exist.
func Write(path string, o Options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write model file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write model file %s: %w", path, err), ignoreNotExist(os.Remove(f.Name())))
		}
	}()
	w := bufio.NewWriterSize(f, 64<<10)
	if err := errors.Join(encode(w, o), w.Flush(), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
