package modelfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"remuda/controller/state"
	"remuda/internal/bytesize"
	"remuda/internal/hclfault"
)

// File is a model file as a person wrote it.
type File struct {
	// Name is its path. It begins messages, and job files are relative to its directory.
	Name string
	Text string
}

// Source is model files with the job files that they name.
type Source struct {
	Files []File
	// Jobs are the texts of the job files by path: as the model file has it, joined to the
	// model file's directory if it is relative. The path of a job file that a variant leaves out
	// begins with "remuda:".
	Jobs map[string]string
}

// dirPattern is which files of a directory Load reads.
const dirPattern = "*.model.hcl"

// Load reads model files, of a directory all of them, with the job files that they name. Those that
// they leave out are in shipped. The models are those of Source.Models,
// whose policies were not checked.
func Load(shipped fs.FS, paths ...string) (Source, []state.Model, error) {
	var files []File
	for _, path := range paths {
		found := []string{path}
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			if found, err = filepath.Glob(filepath.Join(path, dirPattern)); err != nil {
				return Source{}, nil, fmt.Errorf("list the model files of %s: %w", path, err)
			}
			if len(found) == 0 {
				return Source{}, nil, fmt.Errorf("directory %s has no model files (%s)", path, dirPattern)
			}
		}
		for _, path := range found {
			text, err := readBounded(path, maxFile)
			if err != nil {
				return Source{}, nil, fmt.Errorf("read the model file: %w", err)
			}
			files = append(files, File{path, string(text)})
		}
	}
	return Read(files, shipped, ReadJob)
}

// ReadJob reads a job file on this machine.
func ReadJob(path string) ([]byte, error) { return readBounded(path, maxJob) }

// Read is Load for model files whose text is at hand.
func Read(files []File, shipped fs.FS, read ReadFile) (Source, []state.Model, error) {
	s := Source{Files: files, Jobs: map[string]string{}}
	models, err := s.parse(func(path string) ([]byte, error) {
		var job []byte
		var err error
		if name, ok := strings.CutPrefix(path, shippedPrefix); ok {
			job, err = fs.ReadFile(shipped, name)
		} else {
			job, err = read(path)
		}
		if err == nil {
			s.Jobs[path] = string(job)
		}
		return job, err
	}, nil)
	return s, models, err
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(raw)) > limit {
		err = fmt.Errorf("%s is larger than %s", path, bytesize.Format(limit))
	}
	return raw, err
}

// Models parses all files and has check look at their policies, unless it is nil. Its error has every
// fault of them: also a model that two files define, and a job file that no model file names.
func (s Source) Models(check CheckScaling) ([]state.Model, error) {
	unused := maps.Clone(s.Jobs)
	models, err := s.parse(func(path string) ([]byte, error) {
		job, ok := s.Jobs[path]
		if !ok {
			return nil, errors.New("the request does not have it")
		}
		delete(unused, path)
		return []byte(job), nil
	}, check)
	if err != nil {
		return nil, err
	}
	var faults hclfault.Faults
	for _, path := range slices.Sorted(maps.Keys(unused)) {
		faults = append(faults, hclfault.Fault{File: path, Line: 1, Column: 1, Text: "no model file names this job file"})
	}
	if faults != nil {
		return nil, faults.Wrap(ErrInvalid)
	}
	return models, nil
}

func (s Source) parse(read ReadFile, check CheckScaling) ([]state.Model, error) {
	var models []state.Model
	var faults hclfault.Faults
	first := map[string]hcl.Range{}
	for _, f := range s.Files {
		p := newParser(cmp.Or(f.Name, "model.hcl"), read, check)
		own, err := p.parse([]byte(f.Text))
		var bad hclfault.Faults
		errors.As(err, &bad)
		faults = append(faults, bad...)
		for _, m := range own {
			at := p.names[m.Name]
			if other, dup := first[m.Name]; dup {
				faults = append(faults, hclfault.Fault{File: at.Filename, Line: at.Start.Line, Column: at.Start.Column,
					Text: fmt.Sprintf("duplicate model %q: first defined in %s on line %d", m.Name, other.Filename, other.Start.Line)})
				continue
			}
			first[m.Name] = at
		}
		models = append(models, own...)
	}
	if faults != nil {
		return nil, faults.Wrap(ErrInvalid)
	}
	return models, nil
}

// sources sets the text of each model, comments included: what is between two model blocks belongs
// to the second one, and what follows the last one to that.
func (p *parser) sources(src []byte, blocks []modelBlock) {
	from := 0
	for i := range blocks {
		to := len(src)
		if i < len(blocks)-1 {
			to = blocks[i].Body.(*hclsyntax.Body).Range().End.Byte
			rest, _, more := bytes.Cut(src[to:], []byte("\n"))
			if comment := bytes.TrimSpace(rest); more && (len(comment) == 0 || comment[0] == '#' || bytes.HasPrefix(comment, []byte("//"))) {
				to += len(rest) + 1
			}
		}
		p.models[i].Source = string(src[from:to])
		from = to
	}
}
