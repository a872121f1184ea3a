package pipeline

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// HCL's parser calls itself for what nests, without a bound of its own: these keep a file
// from ending the program. They are far more than people write.
const (
	maxNesting = 200  // brackets in brackets
	maxTurns   = 1000 // conditions and template directives in a file, and signs in a row
)

// tooDeep tells where a file nests too deep, if it does.
func tooDeep(src []byte, filename string) (at hcl.Range, deep bool) {
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
			return t.Range, true
		}
	}
	return at, false
}
