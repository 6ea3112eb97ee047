"""space/dimensions"""
