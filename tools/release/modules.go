package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
)

// module is one that is linked into a program; the first is Go's standard library.
type module struct {
	path, version string
	// files are the files with licences, of the module and of its packages that are linked.
	files []string
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents)([.-].*)?$`)

// modules lists the modules that a program links, without this one.
func (r *release) modules(ctx context.Context, p product, arch string) ([]*module, error) {
	cgo := "CGO_ENABLED=0"
	if p.cgo {
		cgo = "CGO_ENABLED=1"
	}
	out, err := r.output(ctx, []string{"GOFLAGS=", "GOOS=linux", "GOARCH=" + arch, cgo},
		"go", "list", "-deps", "-json=Dir,Standard,Module", "./cmd/"+p.name)
	if err != nil {
		return nil, err
	}
	goroot, err := r.output(ctx, nil, "go", "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, err
	}
	root, version, _ := strings.Cut(strings.TrimSpace(goroot), "\n")
	std := &module{path: "std", version: strings.TrimPrefix(version, "go")}
	if err := std.add(root); err != nil {
		return nil, err
	}
	all := map[string]*module{}
	for dec := json.NewDecoder(strings.NewReader(out)); ; {
		var pkg struct {
			Dir      string
			Standard bool
			Module   *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if pkg.Standard || pkg.Module.Main {
			continue
		}
		m := all[pkg.Module.Path]
		if m == nil {
			m = &module{path: pkg.Module.Path, version: pkg.Module.Version}
			all[m.path] = m
		}
		for dir := pkg.Dir; len(dir) >= len(pkg.Module.Dir); dir = filepath.Dir(dir) {
			if err := m.add(dir); err != nil {
				return nil, err
			}
		}
	}
	list := []*module{std}
	for _, m := range all {
		if len(m.files) == 0 {
			return nil, fmt.Errorf("the module %s has no file with its licence: do not ship it", m.path)
		}
		list = append(list, m)
	}
	slices.SortFunc(list[1:], func(a, b *module) int { return strings.Compare(a.path, b.path) })
	return list, nil
}

// add adds the licences in a directory.
func (m *module) add(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if e.Type().IsRegular() && licenceFile.MatchString(e.Name()) && filepath.Ext(file) != ".go" && !slices.Contains(m.files, file) {
			m.files = append(m.files, file)
		}
	}
	slices.Sort(m.files)
	return nil
}

// licences writes this project's licence and those of the modules into one file. Equal texts are there once.
func (r *release) licences(modules []*module, file string) error {
	own, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	users, texts := map[[32]byte][]string{}, [][]byte{}
	for _, m := range modules {
		for _, f := range m.files {
			text, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			text = bytes.TrimSpace(text)
			sum := sha256.Sum256(text)
			if users[sum] == nil {
				texts = append(texts, text)
			}
			if name := m.path + " " + m.version; !slices.Contains(users[sum], name) {
				users[sum] = append(users[sum], name)
			}
		}
	}
	var b bytes.Buffer
	rule := strings.Repeat("-", 80)
	fmt.Fprintf(&b, "remuda\n\n%s\n", bytes.TrimSpace(own))
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", rule, strings.Join(users[sha256.Sum256(text)], "\n"), text)
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// spdx are the SPDX names of the module's licences, as far as they are recognised.
func (m *module) spdx() (names []string, err error) {
	for _, f := range m.files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if c := licensecheck.Scan(text); c.Percent >= 75 {
			for _, match := range c.Match {
				if !slices.Contains(names, match.ID) {
					names = append(names, match.ID)
				}
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// linked returns the sums of the modules that a program links by their paths, as go.sum has them.
func (r *release) linked(binary string) (map[string]string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for _, dep := range info.Deps {
		sums[dep.Path] = dep.Sum
	}
	return sums, nil
}

// bill writes the software bill of materials of a program in CycloneDX's form, with the sums that the linker wrote into it.
func (r *release) bill(p product, binary string, modules []*module, file string) error {
	sums, err := r.linked(binary)
	if err != nil {
		return err
	}
	if got, want := len(modules)-1, len(sums); got != want {
		return fmt.Errorf("the program has %d modules, and go list names %d", want, got)
	}
	var components []cdx.Component
	for _, m := range modules {
		purl := "pkg:golang/" + m.path + "@" + m.version
		c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.version, PackageURL: purl}
		if sum, ok := strings.CutPrefix(sums[m.path], "h1:"); ok {
			raw, err := base64.StdEncoding.DecodeString(sum)
			if err != nil {
				return fmt.Errorf("the sum of %s is %q: %w", m.path, sum, err)
			}
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
		}
		names, err := m.spdx()
		if err != nil {
			return err
		}
		if len(names) > 0 {
			licences := cdx.Licenses{}
			for _, name := range names {
				licences = append(licences, cdx.LicenseChoice{License: &cdx.License{ID: name}})
			}
			c.Licenses = &licences
		}
		components = append(components, c)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &cdx.Component{
		BOMRef: p.name, Type: cdx.ComponentTypeApplication, Name: p.name, Version: r.version,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "MPL-2.0"}}},
	}}
	bom.Components = &components
	var b bytes.Buffer
	if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}
