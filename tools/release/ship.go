package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format deb
	_ "github.com/goreleaser/nfpm/v2/rpm" // the format rpm
)

var (
	comment = regexp.MustCompile(`(?s)<!--.*?-->\n?`)
	link    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	heading = regexp.MustCompile(`(?m)^#(#+) `)
)

// manual writes the program's page for man: its section of docs/reference/cli.md.
func (r *release) manual(p product, file string) error {
	data, err := os.ReadFile(filepath.Join(r.root, "docs/reference/cli.md"))
	if err != nil {
		return err
	}
	_, text, found := strings.Cut(string(data), "<!-- begin "+p.name+" -->")
	text, _, ended := strings.Cut(text, "<!-- end "+p.name+" -->")
	if !found || !ended {
		return fmt.Errorf("docs/reference/cli.md has no section %q", p.name)
	}
	text = comment.ReplaceAllString(text, "")
	text = link.ReplaceAllString(text, "$1")
	text = heading.ReplaceAllString(text, "$1 ")
	_, text, _ = strings.Cut(strings.TrimSpace(text), "\n") // its heading, the program's name
	text = fmt.Sprintf("# NAME\n\n%s - %s\n\n# DESCRIPTION\n%s", p.name, p.about, text)
	title := fmt.Sprintf("%% \"%s\" \"1\" \"%s\" \"remuda %s\" \"remuda\"\n\n", p.name, r.date.Format("January 2006"), r.version)
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(md2man.Render([]byte(title + text))); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// zip writes the program's zip.
func (r *release) zip(p product, binary, file string) (err error) {
	type entry struct{ name, from string }
	entries := []entry{{p.name, binary}, {"LICENSE.txt", binary + ".licenses"}, {p.name + ".1.gz", binary + ".1.gz"}}
	for _, pattern := range p.files {
		found, err := filepath.Glob(filepath.Join(r.root, pattern))
		if err != nil {
			return err
		}
		for _, from := range found {
			name, err := filepath.Rel(r.root, from)
			if err != nil {
				return err
			}
			entries = append(entries, entry{name, from})
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := zip.NewWriter(f)
	w.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) { return flate.NewWriter(out, flate.BestCompression) })
	for _, e := range entries {
		data, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: r.date}
		h.SetMode(0o644)
		if e.from == binary {
			h.SetMode(0o755)
		}
		out, err := w.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	return w.Close()
}

// packages writes the program's deb and rpm, as packaging/NAME.yaml describes them.
func (r *release) packages(p product, arch, build, glibc string) error {
	// The sources in the file are relative to the checkout.
	if err := os.Chdir(r.root); err != nil {
		return err
	}
	values := map[string]string{"ARCH": arch, "VERSION": r.version, "BUILD": build, "GLIBC": glibc}
	for _, format := range []string{"deb", "rpm"} {
		config, err := nfpm.ParseFileWithEnvMapping(filepath.Join("packaging", p.name+".yaml"), func(name string) string { return values[name] })
		if err != nil {
			return err
		}
		info, err := config.Get(format)
		if err != nil {
			return err
		}
		info.MTime = r.date
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return err
		}
		var b bytes.Buffer
		if err := packager.Package(info, &b); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.out, packager.ConventionalFileName(info)), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sums writes SHA256SUMS, and signs it if a key is named.
func (r *release) sums(ctx context.Context, key string) error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	file := filepath.Join(r.out, "remuda_"+r.version+"_SHA256SUMS")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s%s\n", b.Bytes(), file)
	if key == "" {
		return nil
	}
	_, err = r.output(ctx, nil, "gpg", "--batch", "--local-user", key, "--output", file+".sig", "--detach-sign", file)
	return err
}
