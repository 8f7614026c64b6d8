"""How the small vocabulary that ships with dayzero was made: pieces of our own text, and BPE over them."""
