package hclfault

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// HCL's parser calls itself for what nests, without a bound of its own: a deep file would
// overflow the stack, which ends the program. These bounds are far more than people write.
const (
	maxNesting = 200  // brackets in brackets
	maxTurns   = 1000 // conditions and template directives in a file, and signs in a row
)

// Body parses a file of at most limit bytes. It returns nil, with the faults in c, if the
// file is longer, is no HCL or nests too deeply.
func (c *Collector) Body(src []byte, limit int) hcl.Body {
	if len(src) > limit {
		c.Add(hcl.Range{}, "file is %d bytes: must be at most %d bytes", len(src), limit)
		return nil
	}
	body, diags := Parse(src, c.File)
	c.Diagnostics("", diags)
	if diags.HasErrors() {
		return nil // what a broken file seems to say is not worth complaining about
	}
	return body
}

// Parse parses HCL from an untrusted source. Its error is a diagnostic if src nests too deeply.
func Parse(src []byte, filename string) (*hclsyntax.Body, hcl.Diagnostics) {
	if diags := checkNesting(src, filename); diags != nil {
		return nil, diags
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	return file.Body.(*hclsyntax.Body), diags
}

// ParseExpression is Parse for one expression.
func ParseExpression(src []byte, filename string) (hclsyntax.Expression, hcl.Diagnostics) {
	if diags := checkNesting(src, filename); diags != nil {
		return nil, diags
	}
	return hclsyntax.ParseExpression(src, filename, hcl.InitialPos)
}

func checkNesting(src []byte, filename string) hcl.Diagnostics {
	// Its diagnostics are the parser's, which reads the same tokens later.
	tokens, _ := hclsyntax.LexConfig(src, filename, hcl.InitialPos)
	depth, turns, signs := 0, 0, 0
	for _, t := range tokens {
		sign := false
		switch t.Type {
		case hclsyntax.TokenOParen, hclsyntax.TokenOBrack, hclsyntax.TokenOBrace, hclsyntax.TokenTemplateInterp, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenTemplateControl:
			depth++
			turns++
		case hclsyntax.TokenCParen, hclsyntax.TokenCBrack, hclsyntax.TokenCBrace, hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc:
			depth--
		case hclsyntax.TokenQuestion:
			turns++
		case hclsyntax.TokenBang, hclsyntax.TokenMinus:
			sign = true
		}
		if signs++; !sign {
			signs = 0
		}
		if depth > maxNesting || turns > maxTurns || signs > maxTurns {
			return hcl.Diagnostics{{
				Severity: hcl.DiagError, Subject: &t.Range, Summary: "Nested too deeply",
				Detail: fmt.Sprintf("must be at most %d levels of brackets and %d conditions", maxNesting, maxTurns),
			}}
		}
	}
	return nil
}
